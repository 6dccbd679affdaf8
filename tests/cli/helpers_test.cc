// The pure parts of the program.
#include <gtest/gtest.h>

#include <cmath>

#include "cli/input.h"
#include "cli/numbers.h"
#include "text/stop_texts.h"
#include "base/suggest.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "support/compare.h"
#include "support/temp_dir.h"

namespace lapidary::test {
namespace {

// Every division of `text` into two and into single bytes must let the same text through.
void expect_stopped(const std::vector<std::string>& stops, const std::string& text,
                    const std::string& expected, const std::optional<std::string>& found) {
  for (size_t cut = 0; cut <= text.size() + 1; ++cut) {
    StopMatcher matcher(stops);
    std::string out;
    if (cut > text.size()) {
      for (const char c : text) out += matcher.push(std::string(1, c));
    } else {
      out = matcher.push(text.substr(0, cut));
      out += matcher.push(text.substr(cut));
    }
    out += matcher.flush();
    EXPECT_EQ(out, expected) << "cut at " << cut;
    EXPECT_EQ(matcher.found(), found) << "cut at " << cut;
  }
}

TEST(StopMatcher, FindsTextsAcrossAnyCut) {
  expect_stopped({"END"}, "the END of it", "the ", "END");
  expect_stopped({"\n\n"}, "one\ntwo\n\nthree", "one\ntwo", "\n\n");
  expect_stopped({"aab"}, "aaab", "a", "aab");
  expect_stopped({"xyz", "yz!"}, "ayz!", "a", "yz!");
  expect_stopped({"ab", "abc"}, "zabc", "z", "ab");
  expect_stopped({"END"}, "the EN of it", "the EN of it", {});
  expect_stopped({"END"}, "the EN", "the EN", {});
  expect_stopped({}, "all of it", "all of it", {});
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeginAStop) {
  StopMatcher matcher({"STOP"});
  EXPECT_EQ(matcher.push("go ST"), "go ");
  EXPECT_EQ(matcher.push("AY"), "STAY");
  EXPECT_EQ(matcher.push("S"), "");
  EXPECT_EQ(matcher.push("S"), "S");
  EXPECT_EQ(matcher.flush(), "S");
}

TEST(StopMatcher, SaysNothingAfterAStop) {
  StopMatcher matcher({"."});
  EXPECT_EQ(matcher.push("One. Two."), "One");
  EXPECT_EQ(matcher.push("Three"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, RefusesAnEmptyStop) {
  expect_error([] { StopMatcher({"x", ""}); }, ErrorCode::usage, "stop: the text is empty");
}

TEST(Numbers, AreWrittenForPeople) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(4628283392), "4,628,283,392");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(bytes_text(987), "987 B");
  EXPECT_EQ(bytes_text(1000), "1.00 kB");
  EXPECT_EQ(bytes_text(98362432), "98.4 MB");
  EXPECT_EQ(bytes_text(999600), "1.00 MB");
  EXPECT_EQ(count_text(4628283392), "4.63 G");
  EXPECT_EQ(seconds_text(0.000842), "0.84 ms");
  EXPECT_EQ(seconds_text(0.25), "250 ms");
  EXPECT_EQ(seconds_text(12.34), "12.3 s");
  EXPECT_EQ(seconds_text(125), "2 min 05 s");
  EXPECT_EQ(rate_text(0.734), "0.73");
  EXPECT_EQ(rate_text(41.23), "41.2");
  EXPECT_EQ(rate_text(1834.4), "1,834");
  EXPECT_EQ(per_second(10, 0), 0);
  EXPECT_EQ(per_second(10, 4), 2.5);
}

TEST(Suggest, CountsEdits) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("temp", "temp"), 0);
  EXPECT_EQ(edit_distance("tmep", "temp"), 1);  // a swap is one edit
  EXPECT_EQ(edit_distance("thread", "threads"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Suggest, NamesTheNearestOnly) {
  EXPECT_EQ(nearest("--tmp", {"--temp", "--top-k", "--stop"}), "--temp");
  EXPECT_EQ(nearest("inspct", {"run", "inspect", "score"}), "inspect");
  EXPECT_EQ(nearest("smolm", {"gemma3-270m", "smollm2-135m-instruct"}), "smollm2-135m-instruct");
  EXPECT_EQ(nearest("--frequency", {"--temp", "--frequency-penalty"}), "--frequency-penalty");
  EXPECT_EQ(nearest("zebra", {"run", "inspect", "score"}), std::nullopt);
  EXPECT_EQ(nearest("", {"run"}), std::nullopt);
  EXPECT_EQ(nearest(std::string(100000, 'x'), {"run"}), std::nullopt);
}

TEST(Ids, AreReadInEverySpelling) {
  const std::vector<int32_t> expected{1, 2, 2147483647};
  EXPECT_EQ(parse_ids("1,2,2147483647", "x"), expected);
  EXPECT_EQ(parse_ids(" 1 2\n2147483647 ", "x"), expected);
  EXPECT_EQ(parse_ids("[1, 2, 2147483647]", "x"), expected);
  EXPECT_TRUE(parse_ids("", "x").empty());
}

TEST(Ids, NameTheWordThatIsNone) {
  for (const char* bad : {"-1", "1.5", "x", "2147483648", "0x10"}) {
    expect_error([&] { parse_ids(std::string("7,") + bad, "--ids"); }, ErrorCode::usage,
                 std::string("--ids: \"") + bad + "\" is no token id");
  }
}

TEST(Ids, ComeFromJsonFiles) {
  const TempDir folder;
  const std::vector<int32_t> expected{5, 6};
  EXPECT_EQ(ids_argument(folder.write("a.json", "[5, 6]").string()), expected);
  EXPECT_EQ(ids_argument(folder.write("b.json", R"({"input_ids": [5, 6], "x": 1})").string()), expected);
  expect_error([&] { ids_argument(folder.write("c.json", "[5,").string()); }, ErrorCode::data, "is not JSON");
  expect_error([&] { ids_argument(folder.write("d.json", R"({"ids": [1]})").string()); }, ErrorCode::data,
               "\"input_ids\"");
  expect_error([&] { ids_argument(folder.write("e.json", "[5, -6]").string()); }, ErrorCode::data,
               "entry 1 is no token id: -6");
}

TEST(Terminal, MakesControlCharactersVisible) {
  EXPECT_EQ(terminal_safe("plain\n\ttext é"), "plain\n\ttext é");
  EXPECT_EQ(terminal_safe("\x1b[31mred"), "␛[31mred");
  EXPECT_EQ(terminal_safe("a\rb\x7f"), "a␍b␡");
  EXPECT_EQ(terminal_safe("\xC2\x9B"
                          "31m"),
            "\xEF\xBF\xBD"
            "31m");  // C1: CSI in one character
}

TEST(Table, AlignsByCharactersAndNotBytes) {
  TextTable table({{"name", Align::left}, {"n", Align::right}});
  table.add({"é", "1"});
  table.add({"abc", "20"});
  EXPECT_EQ(table.text(Style(false), ""), "name   n\né      1\nabc   20\n");
}

TEST(Style, ColoursOnlyWhenTold) {
  EXPECT_EQ(Style(false).bold("x"), "x");
  EXPECT_EQ(Style(true).bold("x"), "\x1b[1mx\x1b[0m");
}

}  // namespace
}  // namespace lapidary::test
