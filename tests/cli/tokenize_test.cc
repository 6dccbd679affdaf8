// `lapidary tokenize` on the vocabularies inside the small golden files.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

const std::string kModel = data_path("gguf/models/gemma4-e2b-tiny-F32.gguf").string();

TEST(Tokenize, AddsOneBosAndGoesThereAndBack) {
  const Program program;
  const Outcome ids = program.run({"tokenize", kModel, "the end of the line"});
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_EQ(ids.out.find("2 "), 0u) << "the BOS of this vocabulary is 2: " << ids.out;
  const Outcome bare = program.run({"tokenize", kModel, "the end of the line", "--no-bos"});
  EXPECT_EQ("2 " + bare.out, ids.out);
  const Outcome text = program.run({"tokenize", kModel, "--decode", bare.out});
  EXPECT_EQ(text.out, "the end of the line");
  EXPECT_EQ(program.run({"tokenize", kModel, "--decode", ids.out}).out, "<bos>the end of the line");
}

TEST(Tokenize, NeverDoublesABosThatTheTextSpells) {
  const Program program;
  const Outcome once = program.run({"tokenize", kModel, "<bos>the"});
  EXPECT_EQ(once.out, program.run({"tokenize", kModel, "the"}).out);
  const json::object plain = program.json({"tokenize", kModel, "<bos>the", "--no-special", "--json"});
  EXPECT_GT(plain.at("count").as_int64(), 4) << "as ordinary text it takes several pieces";
}

TEST(Tokenize, ReadsStandardInputByteForByte) {
  const Program program;
  const Outcome given = program.run({"tokenize", kModel, "the\n"}),
                piped = program.run({"tokenize", kModel}, "the\n");
  EXPECT_EQ(given.out, piped.out);
  EXPECT_EQ(program.run({"tokenize", kModel, "-"}, "the\n").out, piped.out);
  EXPECT_NE(program.run({"tokenize", kModel}, "the").out, piped.out);
}

TEST(Tokenize, PiecesAndJsonSayTheSame) {
  const Program program;
  const json::object out = program.json({"tokenize", kModel, "the end", "--json", "--pieces"});
  const json::array &ids = out.at("ids").as_array(), &pieces = out.at("pieces").as_array();
  ASSERT_EQ(ids.size(), pieces.size());
  EXPECT_EQ(out.at("count").as_int64(), static_cast<int64_t>(ids.size()));
  std::string joined;
  for (const json::value& piece : pieces) joined += std::string(piece.as_string());
  EXPECT_EQ(joined, "<bos>the end");
  const Outcome lines = program.run({"tokenize", kModel, "the end", "--pieces"});
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), static_cast<long>(ids.size()));
  EXPECT_NE(lines.out.find("2  \"<bos>\""), std::string::npos) << lines.out;
}

TEST(Tokenize, NamesWhatItCannotRead) {
  const Program program;
  expect_refusal(program.run({"tokenize", kModel, "a\xff"}), 1, "UTF-8");
  expect_refusal(program.run({"tokenize", kModel, "--decode", "1 zebra"}), 2,
                 "--decode: \"zebra\" is no token id");
  expect_refusal(program.run({"tokenize", kModel, "--decode", "1 99999"}), 2, "99999");
  expect_refusal(program.run({"tokenize", data_path("models/llama-tiny").string(), "x"}), 1, "tokenizer");
}

}  // namespace
}  // namespace lapidary::test
