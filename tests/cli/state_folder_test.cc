// The folder of `serve --kv-dir`: blobs that are there whole or not at all, one server at a time, and nothing
// touched that is not its own.
#include "cli/serve/state_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "formats/mapped_file.h"
#include "support/compare.h"
#include "support/small_files.h"
#include "support/temp_dir.h"

namespace lapidary::test {
namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string>;

void put(StateFolder& folder, const std::string& name, std::string_view text) {
  folder.write(name, [&](serve::StateStore::Sink sink) {
    const auto bytes = std::as_bytes(std::span(text));
    sink(bytes.first(bytes.size() / 2));
    sink(bytes.subspan(bytes.size() / 2));
  });
}

std::string get(const StateFolder& folder, const std::string& name) {
  std::string text;
  folder.read(name, [&](std::span<const std::byte> bytes) {
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return text;
}

Names files(const fs::path& folder) {
  Names all;
  for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path().filename().string());
  std::sort(all.begin(), all.end());
  return all;
}

void set_time(const fs::path& path, int64_t seconds) {
  const struct timespec times[2] = {{seconds, 0}, {seconds, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

class StateFolderTest : public testing::Test {
 protected:
  TempDir dir_;
  const fs::path path_ = dir_.path() / "kv";
};

TEST_F(StateFolderTest, WhatIsWrittenIsThereAfterARestart) {
  {
    StateFolder folder(path_);
    EXPECT_EQ(folder.names(), Names{});
    put(folder, "a-1", "first");
    put(folder, "b-2", std::string(3 << 20, 'x'));
    put(folder, "a-1", "replaced");
    put(folder, "gone", "");
    folder.remove("gone");
    folder.remove("gone");
  }
  StateFolder folder(path_);
  set_time(folder.path_of("a-1"), 1000);
  set_time(folder.path_of("b-2"), 2000);
  EXPECT_EQ(folder.names(), (Names{"b-2", "a-1"}));
  set_time(folder.path_of("a-1"), 3000);
  EXPECT_EQ(folder.names(), (Names{"a-1", "b-2"}));
  EXPECT_EQ(get(folder, "a-1"), "replaced");
  EXPECT_EQ(get(folder, "b-2").size(), size_t{3} << 20);
  EXPECT_EQ(files(path_), (Names{"prefix-v1-a-1.lapkv", "prefix-v1-b-2.lapkv", "serve.lock"}));
}

TEST_F(StateFolderTest, OneServerAtATime) {
  {
    const StateFolder first(path_);
    expect_error([&] { const StateFolder second(path_); }, ErrorCode::usage, "another server");
  }
  EXPECT_NO_THROW(StateFolder(path_).names());
}

TEST_F(StateFolderTest, ForeignFilesAreLeftAlone) {
  fs::create_directories(path_ / "prefix-v1-folder.lapkv");
  const Names foreign{"notes.txt",           "prefix-v2-a.lapkv", "prefix-v1-A.lapkv", "prefix-v1-.lapkv",
                      ".prefix-v1-mine.txt", "a.lapkv",           ".other.12.0.tmp"};
  for (const std::string& name : foreign) dir_.write(path_ / name, std::string_view("theirs"));
  fs::create_symlink(path_ / "notes.txt", path_ / "prefix-v1-link.lapkv");
  StateFolder folder(path_);
  put(folder, "own", "ours");
  EXPECT_EQ(folder.names(), Names{"own"});
  folder.remove("own");
  for (const std::string& name : foreign) EXPECT_EQ(read_text_file(path_ / name), "theirs") << name;
  EXPECT_TRUE(fs::is_directory(path_ / "prefix-v1-folder.lapkv"));
}

TEST_F(StateFolderTest, WhatAKilledWriterLeftGoes) {
  fs::create_directories(path_);
  dir_.write(path_ / ".prefix-v1-half.lapkv.4711.0.tmp", std::string_view("half a blob"));
  const StateFolder folder(path_);
  EXPECT_EQ(folder.names(), Names{});
  EXPECT_EQ(files(path_), Names{"serve.lock"});
}

TEST_F(StateFolderTest, AFullDiskIsSaidAndLeavesWhatWasThere) {
  StateFolder folder(path_);
  put(folder, "a", "before");
  {
    const SmallFiles full(4096);
    expect_error([&] { put(folder, "a", std::string(100000, 'x')); }, ErrorCode::io, "cannot write");
  }
  EXPECT_EQ(get(folder, "a"), "before");
  expect_error(
      [&] {
        folder.write("b", [](serve::StateStore::Sink sink) {
          sink({});
          fail(ErrorCode::limit, "given up");
        });
      },
      ErrorCode::limit, "given up");
  EXPECT_EQ(folder.names(), Names{"a"});
  EXPECT_EQ(files(path_).size(), 2u) << "nothing half is left";
}

// Root may write everywhere: while this lives, the test is somebody else.
class NotRoot {
 public:
  NotRoot() {
    if (::geteuid() == 0) {
      EXPECT_EQ(::seteuid(65534), 0);
    }
  }
  ~NotRoot() { EXPECT_EQ(::seteuid(::getuid()), 0); }
};

TEST_F(StateFolderTest, FoldersThatWillNotDoAreNamed) {
  const fs::path file = dir_.write("file", std::string_view("x"));
  expect_error([&] { const StateFolder folder(file); }, ErrorCode::io, "expected a folder");
  expect_error([&] { const StateFolder folder(dir_.path() / "no" / "such"); }, ErrorCode::not_found,
               "no/such");
  expect_error([&] { const StateFolder folder(""); }, ErrorCode::usage, "empty");
  fs::create_directories(path_ / "serve.lock");
  expect_error([&] { const StateFolder folder(path_); }, ErrorCode::io, "serve.lock");
  const fs::path closed = dir_.path() / "closed";
  fs::create_directories(closed);
  ::chmod(dir_.path().c_str(), 0755);
  ::chmod(closed.c_str(), 0555);
  const NotRoot someone;
  expect_error([&] { const StateFolder folder(closed); }, ErrorCode::io, "closed");
}

TEST_F(StateFolderTest, NamesAreHeldToTheirCharacters) {
  StateFolder folder(path_);
  for (const std::string& name :
       Names{"", "../x", "a/b", "A", "a.b", std::string(129, 'a'), std::string("a\0b", 3)})
    expect_error([&] { put(folder, name, "x"); }, ErrorCode::usage, "cannot name a saved state", name);
  expect_error([&] { get(folder, "none"); }, ErrorCode::io, "none");
}

}  // namespace
}  // namespace lapidary::test
