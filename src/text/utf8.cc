#include "text/utf8.h"

#include <algorithm>

namespace lapidary {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Step {
  size_t length;  // of the character, or of the invalid or incomplete part; 0 at the end
  enum { whole, invalid, cut } state;
};

// Range of the second byte, which alone rules out overlong forms, surrogates and values that are too large.
struct Range {
  unsigned char low, high;
};

Range second_byte(unsigned char lead) {
  switch (lead) {
    case 0xE0: return {0xA0, 0xBF};
    case 0xED: return {0x80, 0x9F};
    case 0xF0: return {0x90, 0xBF};
    case 0xF4: return {0x80, 0x8F};
    default: return {0x80, 0xBF};
  }
}

size_t length_of(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

Step next(std::string_view bytes) {
  if (bytes.empty()) return {0, Step::whole};
  const auto lead = static_cast<unsigned char>(bytes[0]);
  const size_t length = length_of(lead);
  if (length == 0) return {1, Step::invalid};
  Range range = second_byte(lead);
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, Step::cut};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte < range.low || byte > range.high) return {i, Step::invalid};
    range = {0x80, 0xBF};
  }
  return {length, Step::whole};
}

}  // namespace

size_t utf8_valid_prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Step step = next(bytes.substr(at));
    if (step.state != Step::whole) break;
    at += step.length;
  }
  return at;
}

void utf8_drain(std::string& bytes, std::string& text) {
  const std::string_view all = bytes;
  size_t at = 0;
  while (at < all.size()) {
    const size_t valid = utf8_valid_prefix(all.substr(at));
    text.append(all.substr(at, valid));
    at += valid;
    if (at == all.size()) break;
    const Step step = next(all.substr(at));
    if (step.state == Step::cut) break;
    text.append(kReplacement);
    at += step.length;
  }
  bytes.erase(0, at);
}

std::string utf8_lossy(std::string_view bytes) {
  std::string rest(bytes), text;
  text.reserve(bytes.size());
  utf8_drain(rest, text);
  if (!rest.empty()) text.append(kReplacement);
  return text;
}

}  // namespace lapidary
