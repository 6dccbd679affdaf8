#include "formats/checkpoint.h"

#include <algorithm>
#include <array>
#include <fstream>

#include "base/error.h"
#include "base/quote.h"
#include "formats/artifact.h"
#include "formats/hf_keys.h"
#include "formats/hf_tensors.h"
#include "formats/import_hf.h"
#include "formats/mapped_file.h"
#include "formats/open_gguf.h"
#include "formats/paths.h"
#include "formats/safetensors.h"
#include "formats/text_assets.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingle = hf_key::weights_file, kIndex = hf_key::index_file;

struct Shards {
  std::vector<MappedFile> files;
};

struct Weights {
  std::shared_ptr<Shards> shards = std::make_shared<Shards>();
  std::map<std::string, HfTensor> tensors;
  int64_t file_bytes = 0;
};

void add_file(const fs::path& path, Weights& out) {
  MappedFile file(path);
  out.file_bytes += static_cast<int64_t>(file.bytes().size());
  for (auto& [name, view] : parse_safetensors(file.bytes(), file.name()).tensors) {
    const auto [it, fresh] = out.tensors.emplace(name, HfTensor{std::move(view), file.name()});
    ensure(fresh, ErrorCode::data, "{}: tensor {}: expected it in one file, got it in {} too", file.name(),
           lapidary::quoted(name), it->second.file);
  }
  out.shards->files.push_back(std::move(file));
}

// The index and the files must name the same tensors in the same places.
void check_index(const fs::path& folder, const std::map<std::string, std::string>& index,
                 const Weights& weights) {
  const std::string where = (folder / kIndex).string();
  for (const auto& [name, file] : index) {
    const auto it = weights.tensors.find(name);
    const std::string got = it == weights.tensors.end() ? "no such tensor" : "it in " + it->second.file;
    ensure(it != weights.tensors.end() && fs::path(it->second.file).filename() == file, ErrorCode::data,
           "{}: tensor {}: expected it in {}, got {}", where, lapidary::quoted(name), lapidary::quoted(file),
           got);
  }
  for (const auto& [name, tensor] : weights.tensors) {
    ensure(index.count(name) != 0, ErrorCode::data,
           "{}: expected every tensor of the files, got none called {} (it is in {})", where,
           lapidary::quoted(name), tensor.file);
  }
}

std::string other_weights(const fs::path& folder) {
  for (const fs::path& entry : entries_of(folder)) {
    const std::string name = entry.filename().string();
    if (entry.extension() == ".gguf")
      return "give the path of the GGUF file itself: " + lapidary::quoted(name);
    if (entry.extension() == ".bin" || entry.extension() == ".pth") {
      return "pickled weights are not read: " + lapidary::quoted(name);
    }
  }
  return "got neither";
}

Weights read_weights(const fs::path& folder) {
  Weights out;
  const bool indexed = is_there(folder / kIndex), single = is_there(folder / kSingle);
  ensure(indexed || single, ErrorCode::not_found, "{}: expected {} or {}; {}", folder.string(), kSingle,
         kIndex, other_weights(folder));
  if (!indexed) return add_file(folder / kSingle, out), out;
  const auto index = parse_safetensors_index(read_text_file(folder / kIndex), (folder / kIndex).string());
  std::vector<std::string> files;
  for (const auto& [tensor, file] : index) files.push_back(file);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  ensure(!single || std::find(files.begin(), files.end(), kSingle) != files.end(), ErrorCode::data,
         "{}: expected {} or the files of {}, got both", folder.string(), kSingle, kIndex);
  for (const std::string& file : files) add_file(folder / file, out);
  check_index(folder, index, out);
  return out;
}

void take_config(const HfConfig& config, Checkpoint& out) {
  out.spec = config.spec;
  out.family = config.family;
  out.text.bos_id = config.bos_id;
  out.text.eos_id = config.eos_id;
  out.text.pad_id = config.pad_id;
  out.text.stop_ids = config.stop_ids;
  if (out.text.stop_ids.empty() && config.eos_id) out.text.stop_ids = {*config.eos_id};
}

Checkpoint open_config(const fs::path& path) {
  Checkpoint out;
  out.path = path;
  out.format = "config.json only";
  take_config(import_hf_config(read_text_file(path), path.string()), out);
  return out;
}

// The first bytes of a file, fewer when it has no more.
std::string first_bytes(const fs::path& path) {
  std::array<char, 8> bytes{};
  std::ifstream in(path, std::ios::binary);
  in.read(bytes.data(), bytes.size());
  return {bytes.data(), static_cast<size_t>(in.gcount())};
}

}  // namespace

Checkpoint open_hf_folder(const fs::path& folder, const std::string& config_name) {
  const fs::path config = folder / config_name;
  ensure(is_there(config), ErrorCode::not_found, "{}: expected {}; {}", folder.string(), config_name,
         other_weights(folder));
  Checkpoint out;
  out.path = folder;
  out.format = "safetensors";
  take_config(import_hf_config(read_text_file(config), config.string()), out);
  Weights weights = read_weights(folder);
  auto tensors = std::make_shared<BoundTensors>(weights.shards);
  out.skipped = bind_hf_tensors(out.spec, out.family, weights.tensors, folder.string(), *tensors);
  out.dtype_bytes = tensors->bytes_by_dtype();
  out.file_bytes = weights.file_bytes;
  out.tensors = std::move(tensors);
  out.keep_alive = weights.shards;
  read_text_assets(folder, out.spec.vocab_size, out.text);
  return out;
}

Checkpoint open_checkpoint(const fs::path& path) {
  constexpr std::string_view kKinds = "a model folder, a GGUF file, a packed model or a config.json";
  ensure(is_there(path), ErrorCode::not_found, "{}: expected {}, got nothing there", path.string(), kKinds);
  if (is_folder(path)) return open_hf_folder(path);
  if (path.extension() == ".json") return open_config(path);
  const std::string magic = first_bytes(path);
  if (magic.starts_with("GGUF")) return open_gguf(path);
  if (starts_with_artifact_magic(std::as_bytes(std::span(magic)))) return open_artifact(path);
  ensure(path.extension() != ".safetensors", ErrorCode::usage,
         "{}: expected the folder that holds it (a safetensors file says nothing of its model), got the file",
         path.string());
  fail(ErrorCode::unsupported, "{}: expected {}, got another file", path.string(), kKinds);
}

}  // namespace lapidary
