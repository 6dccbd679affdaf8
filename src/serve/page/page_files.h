// The files of web/, built in by cmake/embed.cmake.
#pragma once

#include <span>
#include <string_view>

namespace lapidary::serve {

struct EmbeddedFile {
  std::string_view path;  // in its folder: "js/app.js"
  std::string_view bytes;
};

extern const std::span<const EmbeddedFile> kPageFiles;

}  // namespace lapidary::serve
