// MODEL on the command line → a file or folder. Looks at names only; the formats judge the contents.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lapidary {

// ${LAPIDARY_CACHE:-${XDG_CACHE_HOME:-~/.cache}/lapidary}/models
std::filesystem::path model_cache();
// ${XDG_STATE_HOME:-~/.local/state}/lapidary; where the history of the prompt is kept.
std::filesystem::path state_folder();
// Names in the cache that resolve_model() accepts, sorted.
std::vector<std::string> cached_models(const std::filesystem::path& cache);

// An HF folder, a GGUF file (the first of a split set too), a packed model, a folder with exactly one model
// in GGUF, or a name in the cache, where a GGUF file goes before a packed model of the same name.
// `config_alone`: a config.json, or a folder with nothing but that, will do (inspect). Error(not_found):
// nothing there; names what the cache holds and how to fetch. Error(usage): there, but no model.
std::filesystem::path resolve_model(const std::string& model, bool config_alone);

}  // namespace lapidary
