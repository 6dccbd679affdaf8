#include "text/utf8.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

// An independent reading of one code point: decode the bits, then ask whether the value may be written so.
size_t plain_length(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])); };
  const uint32_t lead = at(0);
  const size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
  if (length == 0 || bytes.size() < length) return 0;
  uint32_t value = length == 1 ? lead : lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (at(i) >> 6 != 2) return 0;
    value = value << 6 | (at(i) & 63);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool sound = value >= kLeast[length] && value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF);
  return sound ? length : 0;
}

TEST(Utf8, AgreesWithAPlainDecoderOnEveryThreeBytes) {
  for (uint32_t code = 0; code < (1u << 24);
       code += 7) {  // 7 divides no power of two: every byte meets every byte
    const std::string bytes = {static_cast<char>(code), static_cast<char>(code >> 8),
                               static_cast<char>(code >> 16)};
    size_t valid = 0;
    while (valid < bytes.size()) {
      const size_t length = plain_length(std::string_view(bytes).substr(valid));
      if (length == 0) break;
      valid += length;
    }
    ASSERT_EQ(utf8_valid_prefix(bytes), valid) << code;
  }
}

TEST(Utf8, ReplacesEachMaximalInvalidPart) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(utf8_lossy("a\xFFz"), "a" + r + "z");
  EXPECT_EQ(utf8_lossy("\xE2\x82"), r);
  EXPECT_EQ(utf8_lossy("\xE2\x82z"), r + "z");
  EXPECT_EQ(utf8_lossy("\xC0\xAF"), r + r);
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(utf8_lossy("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(utf8_lossy("\xF0\x9F\x99\x82\xF0\x9F"), "\xF0\x9F\x99\x82" + r);
  EXPECT_EQ(utf8_lossy(""), "");
}

TEST(Utf8, DrainsWhatIsCertainAndKeepsTheRest) {
  std::string held = "ab\xE2\x82", text;
  utf8_drain(held, text);
  EXPECT_EQ(text, "ab");
  EXPECT_EQ(held, "\xE2\x82");
  held += "\xAC!";
  utf8_drain(held, text);
  EXPECT_EQ(text, "ab\xE2\x82\xAC!");
  EXPECT_EQ(held, "");
}

}  // namespace
}  // namespace lapidary
