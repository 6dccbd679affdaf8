#include "base/quote.h"

#include <fmt/format.h>

#include <cstdint>

namespace lapidary {
namespace {

// Length of the well-formed UTF-8 sequence of two or more bytes at the start of `text`; 0 when there is none.
size_t multibyte_length(std::string_view text) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<uint8_t>(text[i]); };
  const uint32_t lead = byte(0);
  const size_t length = lead >= 0xf0 && lead <= 0xf4 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
  if (lead > 0xf4 || length == 0 || text.size() < length) return 0;
  uint32_t point = lead & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3f);
  }
  const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
  const bool surrogate = point >= 0xd800 && point < 0xe000;
  const bool control = point < 0xa0;  // C1 controls: some terminals obey them
  return overlong || surrogate || control || point > 0x10ffff ? 0 : length;
}

}  // namespace

std::string quoted(std::string_view text, size_t max_bytes) {
  std::string out = "\"";
  size_t i = 0;
  while (i < text.size() && i < max_bytes) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte >= 0x80) {
      if (const size_t length = multibyte_length(text.substr(i)); length != 0) {
        out += text.substr(i, length);
        i += length;
        continue;
      }
    }
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += text[i];
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += text[i];
    }
    ++i;
  }
  out += '"';
  if (i < text.size()) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

}  // namespace lapidary
