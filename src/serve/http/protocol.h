// The parts of HTTP that are rules on text and nothing else: targets, hosts, ids, heads of answers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lapidary::serve {

struct Target {
  std::string path;       // decoded; "*" for the whole server
  std::string query;      // as sent, without the '?'
  std::string authority;  // of an absolute target: it stands for the Host header (RFC 9112, 3.2.2)
};
// Nothing when it is malformed: a bad escape, a control character, bytes that are no UTF-8, no '/' in front.
std::optional<Target> parse_target(std::string_view target);

// 1 to 64 of A-Z a-z 0-9 . _ -
bool harmless_id(std::string_view id);
// "req-" and 128 bits of the system's generator in hex: two are never equal, and none tells of another.
std::string new_request_id();

// The name in a Host header, in lower case, without port, brackets and final dot; nothing when it is
// malformed.
std::optional<std::string> host_name(std::string_view host);
// localhost and names below it, 127.0.0.0/8, ::1.
bool loopback_name(std::string_view host);

using Headers = std::vector<std::pair<std::string, std::string>>;

// How the answer to one request is to be sent.
struct AnswerForm {
  bool http_1_0 = false;
  bool keep_alive = true;  // what the peer asked for
  bool head = false;       // no body goes out
  Headers headers;         // of every answer to it: the request's id, CORS
};
// The status line and headers. `length` is the body's; none: a stream, chunked, or ended by close for
// HTTP/1.0.
std::string answer_head(const AnswerForm& form, int status, std::string_view content_type,
                        const Headers& headers, std::optional<size_t> length);
// One piece of a chunked body, appended to `out`. An empty one is left out: it would end the body.
void append_chunk(std::string& out, std::string_view piece);

}  // namespace lapidary::serve
