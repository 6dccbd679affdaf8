#include "serve/http/request.h"

#include <fmt/format.h>

#include <algorithm>

namespace lapidary::serve {
namespace http = boost::beast::http;
namespace {

constexpr std::string_view kMethods = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

std::string_view view(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

int64_t count(const HttpRequest& request, std::string_view name) {
  return std::count_if(request.headers.begin(), request.headers.end(),
                       [&](const auto& header) { return header.first == name; });
}

// Two readings of where a body ends are how one request hides in another (RFC 9112, 11.2).
std::optional<Refusal> check_framing(const HttpRequest& request, unsigned version) {
  for (const std::string_view name : {"content-length", "transfer-encoding", "host", "authorization"})
    if (count(request, name) > 1)
      return Refusal{400, "malformed_request", fmt::format("more than one {} header", name), {}};
  if (request.header("content-length").find(',') != std::string_view::npos)
    return Refusal{400, "malformed_request", "more than one length in content-length", {}};
  if (count(request, "transfer-encoding") == 0) return std::nullopt;
  if (version < 11) return Refusal{400, "malformed_request", "transfer-encoding needs HTTP/1.1", {}};
  if (lower(request.header("transfer-encoding")) != "chunked")
    return Refusal{501, "not_implemented", "a transfer-encoding other than chunked", {}};
  return std::nullopt;
}

std::optional<Refusal> check_host(const HttpRequest& request, std::string_view authority, unsigned version,
                                  const Gate& gate) {
  const bool given = count(request, "host") > 0;
  if (!given && version >= 11) return Refusal{400, "malformed_request", "no Host header", {}};
  if (!given && authority.empty()) return std::nullopt;  // HTTP/1.0: no browser
  const std::string_view text = authority.empty() ? request.header("host") : authority;
  const auto name = host_name(text);
  if (!name) return Refusal{400, "malformed_request", "a Host header that names no host", {}};
  const auto& more = gate.options.allowed_hosts;
  if (!gate.loopback || loopback_name(*name)) return std::nullopt;
  if (std::any_of(more.begin(), more.end(), [&](const std::string& host) { return lower(host) == *name; }))
    return std::nullopt;
  return Refusal{403,
                 "forbidden_host",
                 fmt::format("the host '{}' is neither a loopback name nor one of the allowed hosts", *name),
                 {}};
}

std::optional<Refusal> check_method(std::string_view method, http::verb verb) {
  for (const http::verb known : {http::verb::get, http::verb::head, http::verb::post, http::verb::put,
                                 http::verb::patch, http::verb::delete_, http::verb::options})
    if (verb == known) return std::nullopt;
  return Refusal{405,
                 "method_not_allowed",
                 fmt::format("the method {}; known are {}", method.substr(0, 32), kMethods),
                 {{"Allow", std::string(kMethods)}}};
}

std::optional<Refusal> check_key(const Gate& gate, HttpRequest& request) {
  const auto& open = gate.options.open_paths;
  if (!gate.options.authenticate || std::find(open.begin(), open.end(), request.path) != open.end())
    return std::nullopt;
  auto name = gate.options.authenticate(request.header("authorization"));
  if (!name)
    return Refusal{401,
                   "invalid_api_key",
                   "an API key is needed: send it as 'Authorization: Bearer KEY'",
                   {{"WWW-Authenticate", "Bearer"}}};
  request.client = std::move(*name);
  return std::nullopt;
}

}  // namespace

bool cors_allowed(const HttpOptions& options, std::string_view origin) {
  return !origin.empty() &&
         std::any_of(options.cors_origins.begin(), options.cors_origins.end(),
                     [&](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

Refusal overloaded(std::string message) {
  return {503, "overloaded", std::move(message), {{"Retry-After", "1"}}};
}

Refusal timed_out(std::string message) {
  return {408, "request_timeout", std::move(message), {}};
}

Refusal refusal_of(boost::beast::error_code error, const HttpOptions& options) {
  if (error == http::error::header_limit)
    return {431,
            "header_too_large",
            fmt::format("the request's header has more than {} bytes", options.max_header_bytes),
            {}};
  if (error == http::error::body_limit)
    return {413,
            "body_too_large",
            fmt::format("the request's body has more than {} bytes", options.max_body_bytes),
            {}};
  if (error == http::error::bad_version)
    return {505, "version_not_supported", "a version of HTTP other than 1.0 and 1.1", {}};
  return {400, "malformed_request", "this is no HTTP request, or a damaged one", {}};
}

std::optional<Refusal> check_header(const Parser& parser, const Gate& gate, std::string_view peer,
                                    AnswerForm& form, HttpRequest& request) {
  const auto& message = parser.get();
  for (const auto& field : message)
    request.headers.emplace_back(lower(view(field.name_string())), std::string(view(field.value())));
  const std::string_view id = request.header("x-request-id"), origin = request.header("origin");
  request.id = harmless_id(id) ? std::string(id) : new_request_id();
  request.method = view(message.method_string());
  request.client = peer;
  form.http_1_0 = message.version() < 11;
  form.keep_alive = parser.keep_alive();
  form.head = message.method() == http::verb::head;
  form.headers = {{"X-Request-Id", request.id}};
  if (!gate.options.cors_origins.empty()) form.headers.emplace_back("Vary", "Origin");
  if (cors_allowed(gate.options, origin)) {
    form.headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
    form.headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  }

  if (auto refusal = check_framing(request, message.version())) return refusal;
  if (auto refusal = check_method(request.method, message.method())) return refusal;
  auto target = parse_target(view(message.target()));
  if (!target || (target->path == "*" && message.method() != http::verb::options))
    return Refusal{400, "malformed_request", "the request's target is no path, or has a bad escape", {}};
  request.path = std::move(target->path);
  request.query = std::move(target->query);
  if (form.head) request.method = "GET";
  if (auto refusal = check_host(request, target->authority, message.version(), gate)) return refusal;
  const std::string_view expect = request.header("expect");
  if (!expect.empty() && lower(expect) != "100-continue")
    return Refusal{417, "expectation_failed", "an expectation other than 100-continue", {}};
  if (answer_here(request, false)) return std::nullopt;  // browsers send no key with a preflight
  return check_key(gate, request);
}

std::optional<HttpAnswer> answer_here(const HttpRequest& request, bool allowed) {
  if (request.method != "OPTIONS") return std::nullopt;
  const bool preflight = !request.header("access-control-request-method").empty();
  if (!preflight && request.path != "*") return std::nullopt;
  HttpAnswer answer{204, "", "", {{"Allow", std::string(kMethods)}}};
  if (preflight && allowed) {
    answer.headers.emplace_back("Access-Control-Allow-Methods", std::string(kMethods));
    const std::string_view asked = request.header("access-control-request-headers");
    if (!asked.empty()) answer.headers.emplace_back("Access-Control-Allow-Headers", std::string(asked));
    answer.headers.emplace_back("Access-Control-Max-Age", "600");
  }
  return answer;
}

}  // namespace lapidary::serve
