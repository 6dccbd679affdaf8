#include "serve/http/protocol.h"

#include <arpa/inet.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/error.h"
#include "text/utf8.h"

namespace lapidary::serve {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

bool alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

std::optional<std::string> decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); i++) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (control(c)) return std::nullopt;
    out += c;
  }
  if (utf8_valid_prefix(out) != out.size()) return std::nullopt;
  return out;
}

std::string_view reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    default: return "";  // the phrase may be empty (RFC 9112, 4)
  }
}

// What a handler puts into a header may come from a client; a line break there would begin another header.
void append_header(std::string& out, std::string_view name, std::string_view value) {
  const size_t from = out.size();
  fmt::format_to(std::back_inserter(out), "{}: {}", name, value);
  std::replace_if(out.begin() + static_cast<std::ptrdiff_t>(from), out.end(), control, ' ');
  out += "\r\n";
}

}  // namespace

std::optional<Target> parse_target(std::string_view target) {
  Target out;
  if (target == "*") {
    out.path = "*";
    return out;
  }
  for (const std::string_view scheme : {"http://", "https://"})
    if (target.substr(0, scheme.size()) == scheme) {
      target.remove_prefix(scheme.size());
      const size_t end = std::min(target.find_first_of("/?"), target.size());
      out.authority = target.substr(0, end);
      if (out.authority.empty()) return std::nullopt;
      target.remove_prefix(end);
      break;
    }
  const size_t mark = target.find('?');
  const std::string_view path = target.substr(0, mark);
  if (mark != std::string_view::npos) out.query = target.substr(mark + 1);
  if (path.empty() && !out.authority.empty()) {
    out.path = "/";
  } else {
    if (path.empty() || path[0] != '/') return std::nullopt;
    const auto decoded = decode(path);
    if (!decoded) return std::nullopt;
    out.path = *decoded;
  }
  if (target.find('#') != std::string_view::npos) return std::nullopt;
  if (std::any_of(out.query.begin(), out.query.end(), control)) return std::nullopt;
  return out;
}

bool harmless_id(std::string_view id) {
  return !id.empty() && id.size() <= 64 && std::all_of(id.begin(), id.end(), [](char c) {
    return alphanumeric(c) || c == '.' || c == '_' || c == '-';
  });
}

std::string new_request_id() {
  std::array<unsigned char, 16> bytes;
  ensure(getentropy(bytes.data(), bytes.size()) == 0, ErrorCode::io, "random bytes for a request's id: {}",
         std::strerror(errno));
  std::string id = "req-";
  for (const unsigned char b : bytes) fmt::format_to(std::back_inserter(id), "{:02x}", b);
  return id;
}

std::optional<std::string> host_name(std::string_view host) {
  std::string_view name, rest;
  if (!host.empty() && host[0] == '[') {
    const size_t end = host.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    name = host.substr(1, end - 1);
    rest = host.substr(end + 1);
  } else {
    const size_t colon = std::min(host.find(':'), host.size());
    name = host.substr(0, colon);
    rest = host.substr(colon);
    if (!name.empty() && name.back() == '.') name.remove_suffix(1);
  }
  if (!rest.empty() && rest[0] != ':') return std::nullopt;
  if (!rest.empty()) rest.remove_prefix(1);
  if (rest.size() > 5 || !std::all_of(rest.begin(), rest.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  std::string out(name);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (!alphanumeric(c) && c != '.' && c != '-' && c != '_' && c != ':') return std::nullopt;
  }
  if (out.empty()) return std::nullopt;
  return out;
}

bool loopback_name(std::string_view host) {
  constexpr std::string_view kBelow = ".localhost";
  if (host == "localhost") return true;
  if (host.size() > kBelow.size() && host.substr(host.size() - kBelow.size()) == kBelow) return true;
  const std::string text(host);
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

std::string answer_head(const AnswerForm& form, int status, std::string_view content_type,
                        const Headers& headers, std::optional<size_t> length) {
  std::string out =
      fmt::format("HTTP/{} {} {}\r\n", form.http_1_0 ? "1.0" : "1.1", status, reason_of(status));
  append_header(out, "Date", fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(std::time(nullptr))));
  if (!content_type.empty()) append_header(out, "Content-Type", content_type);
  for (const auto& [name, value] : form.headers) append_header(out, name, value);
  for (const auto& [name, value] : headers) append_header(out, name, value);
  const bool no_body = status == 204 || status == 304;
  if (length && !no_body) append_header(out, "Content-Length", fmt::format("{}", *length));
  if (!length) {
    append_header(out, "Cache-Control", "no-cache");
    append_header(out, "X-Accel-Buffering", "no");  // nginx would hold it back otherwise
    if (!form.http_1_0) append_header(out, "Transfer-Encoding", "chunked");
  }
  const bool keep = form.keep_alive && (length || !form.http_1_0);
  if (!keep) append_header(out, "Connection", "close");
  if (keep && form.http_1_0) append_header(out, "Connection", "keep-alive");
  out += "\r\n";
  return out;
}

void append_chunk(std::string& out, std::string_view piece) {
  if (piece.empty()) return;
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", piece.size());
  out += piece;
  out += "\r\n";
}

}  // namespace lapidary::serve
