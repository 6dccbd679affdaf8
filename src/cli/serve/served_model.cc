#include "cli/serve/served_model.h"

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "cli/sampling.h"
#include "formats/mapped_file.h"

namespace lapidary {
namespace {

std::string name_of(const ServeFlags& flags, const Checkpoint& checkpoint) {
  if (!flags.name.empty()) return flags.name;
  const std::filesystem::path& path = checkpoint.path;
  std::string name = (path.has_extension() && !is_directory(path) ? path.stem() : path.filename()).string();
  if (name.empty()) name = path.parent_path().filename().string();  // "folder/"
  return name;
}

std::optional<ChatTemplate> template_of(const ServeFlags& flags, const Checkpoint& checkpoint) {
  if (!flags.template_file.empty()) return ChatTemplate(read_text_file(flags.template_file));
  if (!checkpoint.text.chat_template) return std::nullopt;
  return ChatTemplate(*checkpoint.text.chat_template);
}

std::string spelling(const Tokenizer& tokenizer, std::optional<int64_t> id) {
  return id ? tokenizer.token_name(static_cast<TokenId>(*id)) : std::string();
}

std::vector<TokenId> stop_ids_of(const TextModel& model) {
  std::vector<TokenId> ids = model.tokenizer.turn_end_ids();
  for (const int64_t id : model.checkpoint.text.stop_ids) ids.push_back(static_cast<TokenId>(id));
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

OpenedModel open_served_model(const ServeFlags& flags) {
  TextModel model = open_text_model(flags.model, flags.engine);
  std::optional<ChatTemplate> chat = template_of(flags, model.checkpoint);
  std::string name = name_of(flags, model.checkpoint);
  return {std::move(model), std::move(chat), std::move(name)};
}

serve::ServedModel describe_model(const OpenedModel& opened) {
  const Checkpoint& checkpoint = opened.model.checkpoint;
  const Tokenizer& tokenizer = opened.model.tokenizer;
  serve::ServedModel model;
  model.name = opened.name;
  model.created = std::time(nullptr);
  model.spec = &checkpoint.spec;
  model.tokenizer = &tokenizer;
  model.chat = opened.chat ? &*opened.chat : nullptr;
  model.bos = spelling(tokenizer, checkpoint.text.bos_id ? checkpoint.text.bos_id
                                                         : std::optional<int64_t>(tokenizer.bos_id()));
  model.eos = spelling(tokenizer, checkpoint.text.eos_id);
  model.stop_ids = stop_ids_of(opened.model);
  model.syntax = TurnSyntax::of(tokenizer, model.stop_ids);
  model.sampling = sampling_params({}, checkpoint);
  model.words = std::min(tokenizer.vocab_size(), checkpoint.spec.vocab_size);
  return model;
}

}  // namespace lapidary
