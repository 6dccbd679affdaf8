#include "formats/open_gguf.h"

#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/quote.h"
#include "formats/gguf_keys.h"
#include "formats/import_gguf.h"
#include "formats/mapped_file.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

struct GgufSet {
  std::vector<MappedFile> files;
  GgufFile merged;  // metadata of the first part, tensors of all
  int64_t file_bytes = 0;
};

GgufFile map_part(const fs::path& path, GgufSet& set) {
  set.files.emplace_back(path);
  const MappedFile& file = set.files.back();
  set.file_bytes += static_cast<int64_t>(file.bytes().size());
  return parse_gguf(file.bytes(), file.name());
}

// "NAME-00001-of-00003.gguf" → "NAME"; nothing for another name.
std::optional<std::string> split_base(const std::string& name, int64_t number, int64_t count) {
  const std::string tail = fmt::format("-{:05}-of-{:05}.gguf", number, count);
  if (!name.ends_with(tail)) return std::nullopt;
  return name.substr(0, name.size() - tail.size());
}

void merge_part(GgufFile part, int64_t number, GgufSet& set) {
  ensure(part.split_number == number && part.split_count == set.merged.split_count, ErrorCode::data,
         "{}: split.no and split.count: expected {} and {}, got {} and {}", part.name, number,
         set.merged.split_count, part.split_number, part.split_count);
  for (auto& [name, view] : part.tensors) {
    const bool fresh = set.merged.tensors.emplace(name, std::move(view)).second;
    ensure(fresh, ErrorCode::data,
           "{}: tensor {}: expected it in one part of the split set, got it in an earlier one too", part.name,
           lapidary::quoted(name));
  }
}

void read_siblings(const fs::path& path, GgufSet& set) {
  const int64_t count = set.merged.split_count;
  ensure(set.merged.split_number == 0, ErrorCode::usage,
         "{}: expected the first file of the split set, got number {} of {}", path.string(),
         set.merged.split_number + 1, count);
  const auto base = split_base(path.filename().string(), 1, count);
  ensure(base.has_value(), ErrorCode::data,
         "{}: expected a name that ends in -00001-of-{:05}.gguf (split.count is {}), got {}", path.string(),
         count, count, lapidary::quoted(path.filename().string()));
  for (int64_t i = 1; i < count; ++i) {
    merge_part(map_part(path.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", *base, i + 1, count), set),
               i, set);
  }
  if (!set.merged.has("split.tensors.count")) return;
  const int64_t expected = set.merged.get_int("split.tensors.count");
  ensure(static_cast<int64_t>(set.merged.tensors.size()) == expected, ErrorCode::data,
         "{}: split.tensors.count: expected as many tensors as the parts hold ({}), got {}", path.string(),
         set.merged.tensors.size(), expected);
}

std::optional<int64_t> read_id(const GgufFile& file, std::string_view key, int64_t vocab_size) {
  if (!file.has(key)) return std::nullopt;
  const int64_t id = file.get_int(key);
  ensure(id >= 0 && id < vocab_size, ErrorCode::data, "{}: {}: expected 0 to {}, got {}", file.name, key,
         vocab_size - 1, id);
  return id;
}

void take_text(const GgufFile& file, int64_t vocab_size, TextAssets& out) {
  out.gguf = &file;
  out.bos_id = read_id(file, gguf_key::bos_token_id, vocab_size);
  out.eos_id = read_id(file, gguf_key::eos_token_id, vocab_size);
  out.pad_id = read_id(file, gguf_key::padding_token_id, vocab_size);
  if (out.eos_id) out.stop_ids = {*out.eos_id};
  if (!file.has(gguf_key::chat_template)) return;
  out.chat_template = file.get_string(gguf_key::chat_template);
  out.chat_template_source = "GGUF metadata";
}

}  // namespace

Checkpoint open_gguf(const fs::path& path) {
  auto set = std::make_shared<GgufSet>();
  set->merged = map_part(path, *set);
  if (set->merged.split_count > 1) read_siblings(path, *set);
  GgufModel model = import_gguf_spec(set->merged);
  auto tensors = std::make_shared<BoundTensors>(set);
  Checkpoint out;
  out.path = path;
  out.format = fmt::format("gguf v{}", set->merged.version);
  out.skipped = bind_gguf_tensors(model, set->merged, *tensors);
  out.dtype_bytes = tensors->bytes_by_dtype();
  out.file_bytes = set->file_bytes;
  out.family = model.family;
  out.spec = std::move(model.spec);
  out.tensors = std::move(tensors);
  take_text(set->merged, out.spec.vocab_size, out.text);
  out.keep_alive = set;
  return out;
}

}  // namespace lapidary
