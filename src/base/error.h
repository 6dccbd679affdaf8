// Errors: thrown at the borders (load, spec, request) with what, where, expected, got. An error ends a
// request, never the process.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace lapidary {

enum class ErrorCode {
  usage,        // a flag, argument or request that makes no sense
  not_found,    // a file, model or name that is not there
  data,         // bytes that are damaged, contradictory or hostile
  unsupported,  // a well-formed file or value that names something we do not know
  limit,        // a bound that the caller set or the machine has
  io,           // the operating system refused to read or write
  internal,     // our own mistake
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Checks what a caller or a file promised; the message is only built when the promise is broken.
template <typename... Args>
void ensure(bool condition, ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) fail(code, format, std::forward<Args>(args)...);
}

}  // namespace lapidary
