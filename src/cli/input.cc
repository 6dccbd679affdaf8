#include "cli/input.h"

#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/quote.h"
#include "formats/mapped_file.h"

namespace lapidary {
namespace {

constexpr size_t kMaxText = size_t{256} << 20;

std::vector<int32_t> ids_of_json(const boost::json::value& document, const std::string& name) {
  const boost::json::value* list = &document;
  if (const auto* object = document.if_object()) {
    list = object->if_contains("input_ids");
    ensure(list != nullptr, ErrorCode::data, "{}: expected an array of ids or an object with \"input_ids\"",
           name);
  }
  const auto* array = list->if_array();
  ensure(array != nullptr, ErrorCode::data, "{}: expected an array of ids", name);
  std::vector<int32_t> ids;
  for (const boost::json::value& item : *array) {
    const auto* id = item.if_int64();
    ensure(id != nullptr && *id >= 0 && *id <= std::numeric_limits<int32_t>::max(), ErrorCode::data,
           "{}: entry {} is no token id: {}", name, ids.size(), boost::json::serialize(item));
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace

std::string read_stdin() {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = read(STDIN_FILENO, buffer, sizeof buffer);
    if (got == 0) return text;
    if (got < 0 && errno == EINTR) continue;
    ensure(got > 0, ErrorCode::io, "cannot read standard input: {}", std::strerror(errno));
    text.append(buffer, static_cast<size_t>(got));
    ensure(text.size() <= kMaxText, ErrorCode::limit, "standard input holds more than {} MiB",
           kMaxText >> 20);
  }
}

std::string read_text(const std::string& path) {
  return path == "-" ? read_stdin() : read_text_file(path, kMaxText);
}

std::vector<int32_t> parse_ids(std::string_view text, std::string_view what) {
  constexpr std::string_view kBetween = ", \t\r\n[]";
  std::vector<int32_t> ids;
  for (size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    int32_t id = 0;
    const auto [stop, problem] = std::from_chars(word.data(), word.data() + word.size(), id);
    ensure(problem == std::errc{} && stop == word.data() + word.size() && id >= 0, ErrorCode::usage,
           "{}: {} is no token id (expected whole numbers from 0 on, separated by commas or blanks)", what,
           lapidary::quoted(word));
    ids.push_back(id);
    at = text.find_first_not_of(kBetween, end);
  }
  return ids;
}

std::vector<int32_t> ids_argument(const std::string& argument) {
  if (!argument.ends_with(".json")) return parse_ids(argument, "--ids");
  boost::system::error_code problem;
  const boost::json::value document = boost::json::parse(read_text_file(argument, kMaxText), problem);
  ensure(!problem, ErrorCode::data, "{} is not JSON: {}", argument, problem.message());
  return ids_of_json(document, argument);
}

}  // namespace lapidary
