// A refusal in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <fmt/core.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace lapidary::serve {

// type is "invalid_request_error", "authentication_error", "not_found_error", "rate_limit_error",
// "server_error"; code a stable word ("unknown_field", "context_length_exceeded", ...); param the field, as a
// path ("messages[2].content"), or empty.
class ApiError : public std::exception {
 public:
  ApiError(int status, std::string type, std::string code, std::string param, std::string message)
      : status_(status),
        type_(std::move(type)),
        code_(std::move(code)),
        param_(std::move(param)),
        message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  int status() const { return status_; }
  const std::string& type() const { return type_; }
  const std::string& code() const { return code_; }
  const std::string& param() const { return param_; }
  std::string body() const;  // JSON, one line

 private:
  int status_;
  std::string type_, code_, param_, message_;
};

// 400, invalid_request_error.
template <typename... Args>
[[noreturn]] void refuse(std::string_view code, std::string_view param, fmt::format_string<Args...> format,
                         Args&&... args) {
  throw ApiError(400, "invalid_request_error", std::string(code), std::string(param),
                 fmt::format(format, std::forward<Args>(args)...));
}

// The body of an error that has a status and nothing else: its type follows from the status.
std::string error_body(int status, std::string_view code, std::string_view message);

}  // namespace lapidary::serve
