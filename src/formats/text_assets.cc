#include "formats/text_assets.h"

#include "base/error.h"
#include "formats/hf_keys.h"
#include "formats/import_common.h"
#include "formats/mapped_file.h"
#include "formats/paths.h"
#include "spec/json_fields.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

std::string read_if_there(const fs::path& path) {
  return is_there(path) ? read_text_file(path) : std::string();
}

void read_generation_config(const fs::path& path, int64_t vocab_size, TextAssets& out) {
  if (!is_there(path)) return;
  const auto root = parse_json(read_text_file(path), path.string());
  JsonFields f(root, path.string());
  const auto take = [&](std::string_view key, std::optional<int64_t>& id) {
    if (!f.has(key)) return;
    const auto ids = read_token_ids(f, key, vocab_size);
    if (!ids.empty()) id = ids.front();
  };
  take(hf_key::bos_token_id, out.bos_id);
  take(hf_key::eos_token_id, out.eos_id);
  take(hf_key::pad_token_id, out.pad_id);
  if (f.has(hf_key::eos_token_id)) out.stop_ids = read_token_ids(f, hf_key::eos_token_id, vocab_size);
}

// "chat_template": a text, or a list of {"name", "template"}, of which "default" is for chat.
void read_config_template(const std::string& text, const std::string& name, TextAssets& out) {
  const auto root = parse_json(text, name);
  JsonFields f(root, name);
  if (!f.has("chat_template")) return;
  const auto& value = f.get("chat_template");
  if (!value.is_array()) {
    out.chat_template = f.get_string("chat_template");
    out.chat_template_source = "tokenizer_config.json";
    return;
  }
  std::string names;
  for (const auto& entry : value.get_array()) {
    JsonFields named(entry, f.path("chat_template"));
    const std::string title = named.get_string("name"), body = named.get_string("template");
    names += fmt::format("{}{}", names.empty() ? "" : ", ", title);
    if (title != "default") continue;
    out.chat_template = body;
    out.chat_template_source = "tokenizer_config.json, the template named default";
  }
  if (!out.chat_template)
    out.chat_template_source = fmt::format("none is called default in tokenizer_config.json ({})", names);
}

}  // namespace

void read_text_assets(const fs::path& folder, int64_t vocab_size, TextAssets& out) {
  out.tokenizer_json = read_if_there(folder / hf_key::tokenizer_file);
  out.tokenizer_config_json = read_if_there(folder / hf_key::tokenizer_config_file);
  read_generation_config(folder / hf_key::generation_file, vocab_size, out);
  if (is_there(folder / hf_key::template_file)) {
    out.chat_template = read_text_file(folder / hf_key::template_file);
    out.chat_template_source = "chat_template.jinja";
  } else if (!out.tokenizer_config_json.empty()) {
    read_config_template(out.tokenizer_config_json, (folder / hf_key::tokenizer_config_file).string(), out);
  }
}

}  // namespace lapidary
