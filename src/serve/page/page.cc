#include "serve/page/page.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/quote.h"
#include "serve/api/endpoints.h"
#include "serve/page/page_files.h"

namespace lapidary::serve {
namespace {

constexpr std::string_view kStart = "index.html";

constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string_view content_type(std::string_view path) {
  constexpr std::pair<std::string_view, std::string_view> types[] = {
      {".html", "text/html; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".svg", "image/svg+xml"},
  };
  for (const auto& [end, type] : types) {
    if (path.ends_with(end)) return type;
  }
  throw Error(ErrorCode::internal, fmt::format("web/{}: no content type is known for it", path));
}

struct PageFile {
  std::string_view bytes, type;
  std::string tag;
};

std::string path_of(std::string_view file) {
  return file == kStart ? "/" : "/page/" + std::string(file);
}

const std::map<std::string, PageFile, std::less<>>& files() {
  static const auto all = [] {
    std::map<std::string, PageFile, std::less<>> out;
    for (const auto& [path, bytes] : kPageFiles) {
      const std::string tag = "\"" + hash_text(hash128(std::as_bytes(std::span(bytes)))) + "\"";
      out.emplace(path_of(path), PageFile{bytes, content_type(path), tag});
    }
    return out;
  }();
  return all;
}

// A list of tags, weak ones among them, or "*" (RFC 9110, 13.1.2). Tags of ours hold no comma.
bool names(std::string_view list, std::string_view tag) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    std::string_view one = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    while (one.starts_with(' ') || one.starts_with('\t')) one.remove_prefix(1);
    while (one.ends_with(' ') || one.ends_with('\t')) one.remove_suffix(1);
    if (one.starts_with("W/")) one.remove_prefix(2);
    if (one == tag || one == "*") return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> page_paths() {
  std::vector<std::string> out;
  for (const auto& [path, file] : files()) out.push_back(path);
  return out;
}

HttpAnswer page_answer(std::string_view path, std::string_view if_none_match) {
  const auto found = files().find(path);
  if (found == files().end()) {
    throw ApiError(404, "not_found_error", "unknown_path", "",
                   fmt::format("there is no {} here", quoted(path, 80)));
  }
  const PageFile& file = found->second;
  HttpAnswer answer;
  answer.content_type = file.type;
  answer.headers = {{"ETag", file.tag},
                    {"Cache-Control", "no-cache"},
                    {"Content-Security-Policy", std::string(kPolicy)},
                    {"X-Content-Type-Options", "nosniff"},
                    {"Referrer-Policy", "no-referrer"},
                    {"Cross-Origin-Opener-Policy", "same-origin"}};
  if (names(if_none_match, file.tag)) {
    answer.status = 304;
  } else {
    answer.body = file.bytes;
  }
  return answer;
}

std::vector<Endpoint> page_endpoints() {
  const auto give = [](Call& call) {
    call.reply->answer(page_answer(call.request.path, call.request.header("if-none-match")));
  };
  return {{"GET", "/", give}, {"GET", "/page/{file}", give}};
}

}  // namespace lapidary::serve
