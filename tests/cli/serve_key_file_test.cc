// The file of --api-keys.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/error.h"
#include "cli/serve/key_file.h"
#include "support/temp_dir.h"

namespace lapidary::test {
namespace {

constexpr const char* kAlice = "alice-0123456789abcdef";
constexpr const char* kBob = "bob-0123456789abcdefgh";

std::string problem_of(const std::string& text) {
  try {
    parse_keys(text, "keys.txt");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class KeyFileTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& text, mode_t mode = 0600) {
    const std::filesystem::path path = folder_.write("keys.txt", std::string_view(text));
    chmod(path.c_str(), mode);
    return path;
  }
  KeyFile open(const std::string& text, mode_t mode = 0600) {
    return KeyFile(write(text, mode), [this](const std::string& line) { warnings_.push_back(line); });
  }
  TempDir folder_;
  std::vector<std::string> warnings_;
};

TEST_F(KeyFileTest, NamesWhoCalls) {
  const KeyFile keys = open(std::string("# who may\n\nalice ") + kAlice + "  # at work\r\n\tbob\t" + kBob);
  EXPECT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys.find(std::string("Bearer ") + kAlice), "alice");
  EXPECT_EQ(keys.find(std::string("bEARER   ") + kBob + " "), "bob");
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(KeyFileTest, NothingElseIsAKey) {
  const KeyFile keys = open(std::string("alice ") + kAlice);
  for (const std::string& header :
       {std::string(), std::string("Bearer"), std::string("Bearer "), std::string(kAlice),
        std::string("Basic ") + kAlice, std::string("Bearer ") + kAlice + "x", std::string("Bearer alice"),
        std::string("Bearer ") + std::string(kAlice).substr(0, 21), std::string("Bearer #"),
        std::string("Bearer ") + std::string(kAlice) + std::string(1, '\0')}) {
    EXPECT_EQ(keys.find(header), std::nullopt) << header;
  }
}

TEST(KeyComparison, IsOfWholeKeys) {
  EXPECT_TRUE(same_key("abc", "abc"));
  EXPECT_TRUE(same_key("", ""));
  for (const char* other : {"", "ab", "abd", "abcd", "xbc", "ABC"})
    EXPECT_FALSE(same_key("abc", other)) << other;
}

TEST(KeyLines, MistakesAreNamedByLineAndNeverShowAKey) {
  const std::string key = kAlice;
  EXPECT_EQ(problem_of(key), "keys.txt: line 1: expected a name and a key, got 1 word");
  EXPECT_EQ(problem_of("a " + key + "\nb c d"), "keys.txt: line 2: expected a name and a key, got 3 words");
  EXPECT_EQ(problem_of("a short"), "keys.txt: line 1: the key has 5 characters, expected 16 to 512");
  EXPECT_EQ(problem_of("a " + key + "\na " + kBob), "keys.txt: line 2: the name a is there twice");
  EXPECT_EQ(problem_of("a " + key + "\nb " + key), "keys.txt: line 2: the key is that of a too");
  EXPECT_NE(problem_of("ä " + key).find("the name must be"), std::string::npos);
  EXPECT_NE(problem_of("a " + key + "\x01").find("printable"), std::string::npos);
  EXPECT_NE(problem_of("# nobody\n\n").find("nobody could call"), std::string::npos);
  for (const std::string& text : {key, "a b " + key, "a " + key + "\nb " + key})
    EXPECT_EQ(problem_of(text).find(key), std::string::npos);
}

TEST_F(KeyFileTest, AChangedFileIsReadAgain) {
  KeyFile keys = open(std::string("alice ") + kAlice);
  EXPECT_FALSE(keys.reload_if_changed());
  write(std::string("bob ") + kBob + "\n\n");  // another size: a clock that is too coarse does not matter
  EXPECT_TRUE(keys.reload_if_changed());
  EXPECT_FALSE(keys.reload_if_changed());
  EXPECT_EQ(keys.find(std::string("Bearer ") + kAlice), std::nullopt);
  EXPECT_EQ(keys.find(std::string("Bearer ") + kBob), "bob");
}

TEST_F(KeyFileTest, ABadFileLeavesTheKeysAndSaysSoOnce) {
  KeyFile keys = open(std::string("alice ") + kAlice);
  write("alice");
  EXPECT_FALSE(keys.reload_if_changed());
  EXPECT_FALSE(keys.reload_if_changed());
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("stay as they were"), std::string::npos) << warnings_[0];
  EXPECT_EQ(keys.find(std::string("Bearer ") + kAlice), "alice");
  std::filesystem::remove(folder_.path() / "keys.txt");
  EXPECT_FALSE(keys.reload_if_changed());
  EXPECT_EQ(warnings_.size(), 2u);
  EXPECT_EQ(keys.find(std::string("Bearer ") + kAlice), "alice");
}

TEST_F(KeyFileTest, AFileThatOthersCanReadIsWarnedOf) {
  open(std::string("alice ") + kAlice, 0644);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("mode 0644"), std::string::npos) << warnings_[0];
}

TEST_F(KeyFileTest, AMissingFileIsAnError) {
  EXPECT_THROW(KeyFile(folder_.path() / "none.txt", [](const std::string&) {}), Error);
}

}  // namespace
}  // namespace lapidary::test
