// The body of a Gemma 4 tool call: call:NAME{key:value,...}. Strings stand between two string marks and hold
// anything; keys are bare or stand between marks; blanks around the punctuation are allowed.
#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/output_parser.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

constexpr char kMark = '\xFF';  // a string mark; no byte of UTF-8
constexpr std::string_view kBlanks = " \n\t\r";

// Valid UTF-8 with marks in it.
std::string marked_text(const Tokenizer& tokenizer, std::optional<TokenId> mark,
                        std::span<const TokenId> body) {
  std::string text, bytes;
  for (const TokenId id : body) {
    if (id == mark) {
      text += utf8_lossy(std::exchange(bytes, {})) + kMark;
    } else {
      bytes += tokenizer.decode_bytes({&id, 1}, false);
    }
  }
  return text + utf8_lossy(bytes);
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          constexpr std::string_view kHex = "0123456789abcdef";
          out += {'\\', 'u', '0', '0', kHex[static_cast<size_t>(c) >> 4], kHex[static_cast<size_t>(c) & 15]};
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

struct NumberParts {
  std::string_view whole, fraction, exponent;  // digits; the exponent with its sign
};

// Empty when `word` is no JSON number.
std::optional<NumberParts> number_parts(std::string_view word) {
  NumberParts parts;
  const auto digits = [&word] {
    size_t n = 0;
    while (n < word.size() && word[n] >= '0' && word[n] <= '9') ++n;
    return std::exchange(word, word.substr(n)).substr(0, n);
  };
  if (word.starts_with('-')) word.remove_prefix(1);
  parts.whole = digits();
  if (parts.whole.empty() || (parts.whole.size() > 1 && parts.whole[0] == '0')) return {};
  if (word.starts_with('.')) {
    word.remove_prefix(1);
    parts.fraction = digits();
    if (parts.fraction.empty()) return {};
  }
  if (word.starts_with('e') || word.starts_with('E')) {
    word.remove_prefix(1);
    const std::string_view from = word;
    if (word.starts_with('+') || word.starts_with('-')) word.remove_prefix(1);
    if (digits().empty()) return {};
    parts.exponent = from.substr(0, from.size() - word.size());
  }
  if (!word.empty()) return {};
  return parts;
}

// Integers of any size are fine; other numbers must be finite as a double.
bool is_json_number(std::string_view word) {
  const std::optional<NumberParts> parts = number_parts(word);
  if (!parts) return false;
  if (parts->fraction.empty() && parts->exponent.empty()) return true;
  double value = 0;
  if (std::from_chars(word.data(), word.data() + word.size(), value).ec == std::errc{}) return true;
  // Out of range: too small is zero, too large is none.
  const std::string all = std::string(parts->whole).append(parts->fraction);
  const size_t leading = all.find_first_not_of('0');
  if (leading == std::string::npos) return true;
  const auto point = static_cast<int64_t>(parts->whole.size()) - static_cast<int64_t>(leading);
  std::string_view text = parts->exponent;
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t exponent = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), exponent);
  if (read.ec == std::errc::result_out_of_range) return text.starts_with('-');
  return exponent < -point;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  std::optional<ToolCall> call() {
    ToolCall call;
    if (!rest_.starts_with("call:")) return {};
    rest_.remove_prefix(5);
    size_t n = 0;
    while (n < rest_.size() && is_tool_name_char(rest_[n])) ++n;
    call.name = rest_.substr(0, n);
    rest_.remove_prefix(n);
    if (call.name.empty() || !eat('{') || !object(call.arguments, 1)) return {};
    blanks();
    if (!rest_.empty()) return {};
    return call;
  }

 private:
  bool at(char c) const { return !rest_.empty() && rest_[0] == c; }
  bool eat(char c) {
    if (!at(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlanks), rest_.size())); }
  std::string_view until(std::string_view ends) {
    const size_t n = std::min(rest_.find_first_of(ends), rest_.size());
    return std::exchange(rest_, rest_.substr(n)).substr(0, n);
  }

  bool string(std::string& text) {
    if (!eat(kMark)) return false;
    text = until({&kMark, 1});
    return eat(kMark);
  }

  bool key(std::string& text) {
    if (at(kMark)) {
      if (!string(text)) return false;
    } else {
      constexpr std::array<char, 7> kEnds = {':', ',', '{', '}', '[', ']', kMark};
      std::string_view bare = until({kEnds.data(), kEnds.size()});
      constexpr std::string_view kStrip = " \n\t\r\f\v";
      const size_t first = std::min(bare.find_first_not_of(kStrip), bare.size());
      bare = bare.substr(first, bare.find_last_not_of(kStrip) + 1 - first);
      text = bare;
    }
    return !text.empty();
  }

  // After the opening brace. A key that comes again replaces the value and keeps its first place.
  bool object(std::string& out, int depth) {
    if (depth > kMaxCallDepth) return false;
    std::vector<std::pair<std::string, std::string>> members;
    std::unordered_map<std::string, size_t> places;
    blanks();
    while (!at('}')) {
      if (!members.empty()) {
        if (!eat(',')) return false;
        blanks();
      }
      std::string name, item;
      if (!key(name)) return false;
      blanks();
      if (!eat(':') || !value(item, depth)) return false;
      blanks();
      const auto [place, first] = places.try_emplace(name, members.size());
      if (first) {
        members.emplace_back(std::move(name), std::move(item));
      } else {
        members[place->second].second = std::move(item);
      }
    }
    eat('}');
    out = "{";
    for (const auto& [name, item] : members) {
      if (out.size() > 1) out += ',';
      out += json_string(name) + ':' + item;
    }
    out += '}';
    return true;
  }

  bool list(std::string& out, int depth) {
    if (depth > kMaxCallDepth) return false;
    out = "[";
    blanks();
    while (!at(']')) {
      if (out.size() > 1) {
        if (!eat(',')) return false;
        blanks();
        out += ',';
      }
      std::string item;
      if (!value(item, depth)) return false;
      out += item;
      blanks();
    }
    eat(']');
    out += ']';
    return true;
  }

  bool value(std::string& out, int depth) {
    blanks();
    if (at(kMark)) {
      std::string text;
      if (!string(text)) return false;
      out = json_string(text);
      return true;
    }
    if (eat('{')) return object(out, depth + 1);
    if (eat('[')) return list(out, depth + 1);
    return word(out);
  }

  bool word(std::string& out) {
    constexpr std::array<char, 10> kEnds = {',', '{', '}', '[', ']', ':', ' ', '\n', '\t', '\r'};
    std::string ends(kEnds.data(), kEnds.size());
    ends += kMark;
    out = until(ends);
    constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kWords = {{{"true", "true"},
                                                                                      {"false", "false"},
                                                                                      {"null", "null"},
                                                                                      {"True", "true"},
                                                                                      {"False", "false"},
                                                                                      {"None", "null"}}};
    for (const auto& [spelling, json] : kWords) {
      if (out == spelling) {
        out = json;
        return true;
      }
    }
    return is_json_number(out);
  }

  std::string_view rest_;
};

}  // namespace

std::optional<ToolCall> parse_call(const Tokenizer& tokenizer, std::optional<TokenId> string_mark,
                                   std::span<const TokenId> body) {
  const std::string text = marked_text(tokenizer, string_mark, body);
  return Reader(text).call();
}

}  // namespace lapidary
