// Real models in the cache, as tools/fetch_model.py puts them there.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace lapidary::test {

struct RealModel {
  const char* name;    // in the cache
  const char* golden;  // below gguf/real
};
inline constexpr RealModel kSmol{"smollm2-135m-instruct", "smollm2-135m-instruct-q4_1"};
inline constexpr RealModel kGemma{"gemma3-270m", "gemma3-270m-q4_k_m"};

// Throws with the command that fetches it when it is not there.
inline std::filesystem::path cached_model(const std::string& name) {
  const auto variable = [](const char* key) -> std::string {
    const char* value = std::getenv(key);
    return value != nullptr ? value : "";
  };
  std::filesystem::path root = variable("LAPIDARY_CACHE");
  if (root.empty()) {
    const std::string base = variable("XDG_CACHE_HOME");
    root = std::filesystem::path(base.empty() ? variable("HOME") + "/.cache" : base) / "lapidary";
  }
  const std::filesystem::path path = root / "models" / (name + ".gguf");
  ensure(std::filesystem::exists(path), ErrorCode::not_found, "{} is not there: run tools/fetch_model.py {}",
         path.string(), name);
  return path;
}

}  // namespace lapidary::test
