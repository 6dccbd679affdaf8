#include "cli/model_path.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "formats/artifact.h"
#include "formats/paths.h"

namespace lapidary {
namespace fs = std::filesystem;
namespace {

fs::path environment_folder(const char* variable, const char* below_home) {
  if (const char* value = std::getenv(variable); value != nullptr && *value != '\0') return value;
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr && *home != '\0' ? home : ".") / below_home;
}

// "x-00002-of-00003.gguf" → 2; 0 for a file that is not part of a split set.
int split_number(const std::string& name) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (name.size() < kPattern.size()) return 0;
  const std::string_view tail = std::string_view(name).substr(name.size() - kPattern.size());
  for (size_t i = 0; i < kPattern.size(); ++i) {
    const bool fits = kPattern[i] == '0' ? tail[i] >= '0' && tail[i] <= '9' : tail[i] == kPattern[i];
    if (!fits) return 0;
  }
  return std::atoi(std::string(tail.substr(1, 5)).c_str());
}

std::vector<fs::path> gguf_models_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::path& entry : entries_of(folder)) {
    if (entry.extension() != ".gguf" || is_folder(entry)) continue;
    if (split_number(entry.filename().string()) <= 1) found.push_back(entry);
  }
  return found;
}

bool is_packed(const fs::path& path) {
  return path.extension() == kArtifactExtension;
}

bool is_model_folder(const fs::path& folder) {
  return is_there(folder / "config.json") || gguf_models_in(folder).size() == 1;
}

// The same of a folder that may not be ours to look into: then nothing that could be run is in it.
bool seems_model_folder(const fs::path& folder) {
  try {
    return is_model_folder(folder);
  } catch (const Error&) {
    return false;
  }
}

bool has_weights(const fs::path& folder) {
  for (const fs::path& entry : entries_of(folder)) {
    const std::string name = entry.filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return true;
  }
  return false;
}

fs::path resolve_folder(const fs::path& folder, bool config_alone) {
  const std::vector<fs::path> models = gguf_models_in(folder);
  if (is_there(folder / "config.json")) {
    if (has_weights(folder)) return folder;
    ensure(config_alone, ErrorCode::usage,
           "{} has a config.json but no .safetensors weights; only inspect and kv plan can do with that",
           lapidary::quoted(folder.string()));
    return folder / "config.json";
  }
  ensure(!models.empty(), ErrorCode::usage,
         "{} is no model folder: expected a config.json or a .gguf file in it",
         lapidary::quoted(folder.string()));
  std::vector<std::string> names;
  for (const fs::path& path : models) names.push_back(path.filename().string());
  ensure(models.size() == 1, ErrorCode::usage, "{} holds {} GGUF models; name one of them: {}",
         lapidary::quoted(folder.string()), models.size(), fmt::join(names, ", "));
  return models.front();
}

fs::path resolve_existing(const fs::path& path, bool config_alone) {
  if (is_folder(path)) return resolve_folder(path, config_alone);
  const std::string name = path.filename().string();
  if (path.extension() == ".gguf") {
    const int part = split_number(name);
    ensure(part <= 1, ErrorCode::usage, "{} is part {} of a split set; name the first part (-00001-of-...)",
           lapidary::quoted(path.string()), part);
    return path;
  }
  if (is_packed(path)) return path;
  if (path.extension() == ".json" && config_alone) return path;
  ensure(path.extension() != ".safetensors", ErrorCode::usage,
         "{} is a weight file; name the folder that holds it and its config.json",
         lapidary::quoted(path.string()));
  ensure(path.extension() != ".json", ErrorCode::usage,
         "{} is a configuration without weights; only inspect and kv plan can do with that",
         lapidary::quoted(path.string()));
  fail(ErrorCode::usage, "{} is no model: expected a Hugging Face folder, a .gguf file, a {} file{}",
       lapidary::quoted(path.string()), kArtifactExtension, config_alone ? ", a config.json" : "");
}

[[noreturn]] void fail_unknown(const std::string& model, const fs::path& cache) {
  const std::vector<std::string> known = cached_models(cache);
  std::string message =
      fmt::format("no model {}: not a path, and not a name in {}", lapidary::quoted(model), cache.string());
  if (const auto guess = nearest(model, known)) message += fmt::format("; did you mean {}?", *guess);
  message +=
      known.empty() ? "\n  the cache is empty" : fmt::format("\n  in the cache: {}", fmt::join(known, ", "));
  message += "\n  fetch a small real model with: tools/fetch_model.py smollm2-135m-instruct";
  throw Error(ErrorCode::not_found, message);
}

}  // namespace

fs::path model_cache() {
  if (const char* cache = std::getenv("LAPIDARY_CACHE"); cache != nullptr && *cache != '\0')
    return fs::path(cache) / "models";
  return environment_folder("XDG_CACHE_HOME", ".cache") / "lapidary" / "models";
}

fs::path state_folder() {
  return environment_folder("XDG_STATE_HOME", ".local/state") / "lapidary";
}

std::vector<std::string> cached_models(const fs::path& cache) {
  std::set<std::string> names;
  std::error_code ignored;  // no cache yet, or not ours to read: nothing in it
  for (const auto& entry : fs::directory_iterator(cache, ignored)) {
    const fs::path& path = entry.path();
    if (entry.is_directory(ignored)) {
      if (seems_model_folder(path)) names.insert(path.filename().string());
    } else if (is_packed(path) ||
               (path.extension() == ".gguf" && split_number(path.filename().string()) <= 1)) {
      names.insert(path.stem().string());
    }
  }
  return {names.begin(), names.end()};
}

fs::path resolve_model(const std::string& model, bool config_alone) {
  ensure(!model.empty(), ErrorCode::usage, "MODEL is empty");
  if (is_there(model)) return resolve_existing(model, config_alone);
  const fs::path path(model), cache = model_cache();
  if (path.has_parent_path()) {
    fail(ErrorCode::not_found, "no such file or folder: {}", lapidary::quoted(model));
  }
  const std::string packed = model + std::string(kArtifactExtension);
  for (const fs::path& candidate : {cache / model, cache / (model + ".gguf"), cache / packed}) {
    if (is_there(candidate)) return resolve_existing(candidate, config_alone);
  }
  fail_unknown(model, cache);
}

}  // namespace lapidary
