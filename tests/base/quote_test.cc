#include "base/quote.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

TEST(Quoted, LeavesOrdinaryNamesAlone) {
  EXPECT_EQ(quoted("blk.0.attn_q.weight"), "\"blk.0.attn_q.weight\"");
  EXPECT_EQ(quoted(""), "\"\"");
  EXPECT_EQ(quoted("größe 東京 🜚"), "\"größe 東京 🜚\"");
}

TEST(Quoted, EscapesWhatATerminalOrALogMightObey) {
  EXPECT_EQ(quoted("a\x1b[31m\nb"), "\"a\\x1b[31m\\x0ab\"");
  EXPECT_EQ(quoted("say \"hi\" \\"), "\"say \\\"hi\\\" \\\\\"");
  EXPECT_EQ(quoted(std::string_view("a\0b", 3)), "\"a\\x00b\"");
  EXPECT_EQ(quoted("\x7f"), "\"\\x7f\"");
  EXPECT_EQ(quoted("\xc2\x9b"), "\"\\xc2\\x9b\"");  // C1 control
}

TEST(Quoted, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(quoted("\xff"), "\"\\xff\"");
  EXPECT_EQ(quoted("\xe6\x9d"), "\"\\xe6\\x9d\"");           // cut short
  EXPECT_EQ(quoted("\xc0\x80"), "\"\\xc0\\x80\"");           // overlong
  EXPECT_EQ(quoted("\xe0\x80\x80"), "\"\\xe0\\x80\\x80\"");  // overlong
  EXPECT_EQ(quoted("\xed\xa0\x80"), "\"\\xed\\xa0\\x80\"");  // surrogate
  EXPECT_EQ(quoted("\xf5\x80\x80\x80"), "\"\\xf5\\x80\\x80\\x80\"");
}

TEST(Quoted, CutsLongNamesBetweenCharacters) {
  EXPECT_EQ(quoted(std::string(1000, 'x'), 4), "\"xxxx\"... (1000 bytes)");
  EXPECT_EQ(quoted("abc", 3), "\"abc\"");
  EXPECT_EQ(quoted("ab\xc3\xa4z", 3), "\"ab\xc3\xa4\"... (5 bytes)");
}

}  // namespace
}  // namespace lapidary
