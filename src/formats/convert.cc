#include "formats/convert.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <regex>

#include "base/error.h"
#include "base/quote.h"
#include "formats/atomic_file.h"
#include "formats/export_gguf.h"
#include "formats/gguf_keys.h"
#include "formats/hf_keys.h"
#include "formats/safetensors.h"
#include "formats/tensor_stream.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kQuantizationVersion = 2;  // of the block layouts

fs::path parent_of(const fs::path& target) {
  return target.has_parent_path() ? target.parent_path() : fs::path(".");
}

void check_room(const fs::path& target, int64_t needed) {
  const fs::path folder = parent_of(target);
  struct statvfs disk;
  if (::statvfs(folder.c_str(), &disk) != 0) fail_errno(folder.string(), "look at the disk of", errno);
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  ensure(free >= static_cast<uint64_t>(needed), ErrorCode::limit,
         "{}: the disk has room for {} bytes, {} are needed", target.string(), free, needed);
}

// Streams tensors to a file and tells how far it got.
class Writer {
 public:
  Writer(const Checkpoint& source, const ConvertPlan& plan, const ConvertTarget& target)
      : source_(source), plan_(plan), target_(target), team_(target.threads) {}

  void write(const PlannedTensor& tensor, AtomicFile& file) {
    {
      const TensorData data = source_.tensors->read(tensor.slot);
      stream_tensor(tensor, data.view, team_, [&](std::span<const std::byte> bytes) {
        file.write(bytes);
        done_ += static_cast<int64_t>(bytes.size());
        target_.progress(done_, plan_.tensor_bytes);
      });
    }
    source_.tensors->release(tensor.slot);
  }

 private:
  const Checkpoint& source_;
  const ConvertPlan& plan_;
  const ConvertTarget& target_;
  Team team_;
  int64_t done_ = 0;
};

void pad_to(AtomicFile& file, int64_t position) {
  const std::vector<std::byte> zeros(static_cast<size_t>(position - file.position()));
  file.write(zeros);
}

// ---- HF

struct Shard {
  std::string name;
  std::vector<SafetensorsEntry> entries;
  std::vector<const PlannedTensor*> tensors;
  int64_t bytes = 0;
};

std::vector<Shard> cut_into_shards(const ConvertPlan& plan, int64_t limit) {
  std::vector<Shard> shards(1);
  for (const PlannedTensor& tensor : plan.tensors) {
    if (limit > 0 && shards.back().bytes > 0 && shards.back().bytes + tensor.bytes() > limit)
      shards.emplace_back();
    Shard& shard = shards.back();
    shard.entries.push_back({tensor.name, tensor.to, tensor.shape});
    shard.tensors.push_back(&tensor);
    shard.bytes += tensor.bytes();
  }
  shards.front().name = hf_key::weights_file;
  for (size_t i = 0; i < shards.size() && shards.size() > 1; ++i) {
    shards[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

std::string index_json(const std::vector<Shard>& shards, int64_t total) {
  std::string map;
  for (const Shard& shard : shards) {
    for (const SafetensorsEntry& entry : shard.entries)
      map += fmt::format("{}\n    \"{}\": \"{}\"", map.empty() ? "" : ",", entry.name, shard.name);
  }
  return fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{{}\n  }}\n}}\n", total,
      map);
}

std::string hf_dtype_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

// The files that a conversion writes.
bool is_model_file(const std::string& name) {
  static const std::regex shard("model-[0-9]{5}-of-[0-9]{5}\\.safetensors");
  const std::string_view known[] = {
      hf_key::config_file,    hf_key::generation_file,       hf_key::weights_file, hf_key::index_file,
      hf_key::tokenizer_file, hf_key::tokenizer_config_file, hf_key::template_file};
  return std::find(std::begin(known), std::end(known), name) != std::end(known) ||
         std::regex_match(name, shard);
}

// A folder is replaced only when a conversion could have written all of it: --force is no way to lose a home.
void check_folder(const fs::path& folder, bool replace) {
  std::error_code error;
  fs::directory_iterator it(folder, error);
  if (error) fail_errno(folder.string(), "read", error.value());
  if (it == fs::directory_iterator()) return;
  ensure(replace, ErrorCode::io,
         "{}: expected nothing there or an empty folder, got a folder that would be replaced (--force does)",
         folder.string());
  ensure(type_at(folder / hf_key::config_file) == fs::file_type::regular, ErrorCode::usage,
         "{}: only a model folder can be replaced, and this one has no {}", folder.string(),
         hf_key::config_file);
  for (; it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool is_folder = type_at(it->path()) == fs::file_type::directory;
    ensure(
        !is_folder && is_model_file(name), ErrorCode::usage,
        "{}: only a model folder can be replaced, and this one holds the {} {}, which no conversion writes",
        folder.string(), is_folder ? "folder" : "file", lapidary::quoted(name));
  }
  if (error) fail_errno(folder.string(), "read", error.value());
}

std::vector<std::pair<std::string, std::string>> small_files(const Checkpoint& source,
                                                             const ConvertPlan& plan,
                                                             const ConvertedText& text) {
  std::vector<std::pair<std::string, std::string>> out = text.files;
  out.emplace_back(hf_key::config_file,
                   export_hf_config(source.spec, source.family, text.ids, hf_dtype_name(plan.main_dtype)));
  out.emplace_back(hf_key::generation_file, export_generation_config(text.ids));
  return out;
}

}  // namespace

fs::path checked_target(const fs::path& path, ModelFormat format, bool replace) {
  const bool file = format == ModelFormat::gguf;
  ensure(!path.empty(), ErrorCode::usage, "expected the name of a {} to write, got an empty one",
         file ? "file" : "folder");
  ensure(!file || path.has_filename(), ErrorCode::usage,
         "{}: expected the name of a file to write, got one that ends in a slash", path.string());
  const fs::path target = path.has_filename() ? path : path.parent_path();
  const fs::path parent = parent_of(target);
  const fs::file_type above = type_at(parent), there = type_at(target);
  ensure(above != fs::file_type::not_found, ErrorCode::not_found, "{}: no such folder, to write {} in",
         parent.string(), target.filename().string());
  ensure(above == fs::file_type::directory, ErrorCode::io, "{}: expected a folder to write {} in, got none",
         parent.string(), target.filename().string());
  if (there == fs::file_type::not_found) return target;
  const fs::file_type wanted = file ? fs::file_type::regular : fs::file_type::directory;
  ensure(there == wanted, ErrorCode::io, "{}: expected a {} or nothing there, got {}{}", target.string(),
         file ? "file" : "folder",
         there == fs::file_type::directory ? "a folder"
         : there == fs::file_type::regular ? "a file"
                                           : "what is neither a file nor a folder",
         replace ? "; --force replaces a file by a file and a folder by a folder" : "");
  if (!file) {
    check_folder(target, replace);
  } else {
    ensure(replace, ErrorCode::io,
           "{}: expected nothing there, got a file that would be replaced (--force does)", target.string());
  }
  return target;
}

std::vector<std::string> target_notes(const Checkpoint& source, const ConvertPlan& plan) {
  if (plan.format == ModelFormat::gguf) return export_gguf_spec(source.spec, source.family).notes;
  export_hf_config(source.spec, source.family, {}, hf_dtype_name(plan.main_dtype));
  return {};
}

ConvertOutcome write_gguf_model(const Checkpoint& source, const ConvertPlan& plan, ConvertedText text,
                                const ConvertTarget& target) {
  GgufSpec spec = export_gguf_spec(source.spec, source.family);
  std::map<std::string, GgufValue, std::less<>> metadata = text.metadata.values();
  for (const auto& [key, value] : spec.metadata.values()) metadata.insert_or_assign(key, value);
  metadata.insert_or_assign(std::string(gguf_key::file_type), GgufValue{plan.file_type});
  metadata.insert_or_assign(std::string(gguf_key::quantization_version), GgufValue{kQuantizationVersion});
  std::vector<GgufEntry> entries;
  const auto divisors = std::as_bytes(std::span(spec.rope_divisors));
  if (!divisors.empty()) {
    entries.push_back(
        {std::string(gguf_key::rope_freqs), DType::f32, {static_cast<int64_t>(spec.rope_divisors.size())}});
  }
  const size_t extra = entries.size();
  for (const PlannedTensor& tensor : plan.tensors) entries.push_back({tensor.name, tensor.to, tensor.shape});
  const GgufLayout layout = gguf_layout(metadata, entries);
  const fs::path path = checked_target(target.path, ModelFormat::gguf, target.replace);
  check_gguf_layout(layout, entries, path.string());
  check_room(path, layout.file_bytes);
  AtomicFile file(path);
  file.write(layout.header);
  if (extra != 0) file.write(divisors);
  Writer writer(source, plan, target);
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    pad_to(file, layout.offsets[i + extra]);
    writer.write(plan.tensors[i], file);
  }
  pad_to(file, layout.file_bytes);
  file.commit();
  return {layout.file_bytes, {path.filename().string()}};
}

ConvertOutcome write_hf_model(const Checkpoint& source, const ConvertPlan& plan, const ConvertedText& text,
                              const ConvertTarget& target) {
  const auto files = small_files(source, plan, text);
  const std::vector<Shard> shards = cut_into_shards(plan, target.shard_bytes);
  const fs::path path = checked_target(target.path, ModelFormat::hf, target.replace);
  int64_t needed = plan.tensor_bytes + (int64_t{1} << 20);
  for (const auto& [name, contents] : files) needed += static_cast<int64_t>(contents.size());
  AtomicFolder folder(path,
                      target.replace ? AtomicFolder::Existing::replace : AtomicFolder::Existing::refuse);
  check_room(path, needed);
  ConvertOutcome out;
  const auto count = [&](const std::string& name, int64_t bytes) {
    out.files.push_back(name);
    out.bytes += bytes;
  };
  const auto write_small = [&](const std::string& name, const std::string& contents) {
    write_file_atomically(folder.temporary() / name, std::as_bytes(std::span(contents)));
    count(name, static_cast<int64_t>(contents.size()));
  };
  Writer writer(source, plan, target);
  for (const Shard& shard : shards) {
    AtomicFile file(folder.temporary() / shard.name);
    file.write(safetensors_header(shard.entries, {{"format", "pt"}}));
    for (const PlannedTensor* tensor : shard.tensors) writer.write(*tensor, file);
    count(shard.name, file.position());
    file.commit();
  }
  if (shards.size() > 1) write_small(std::string(hf_key::index_file), index_json(shards, plan.tensor_bytes));
  for (const auto& [name, contents] : files) write_small(name, contents);
  folder.commit();
  return out;
}

}  // namespace lapidary
