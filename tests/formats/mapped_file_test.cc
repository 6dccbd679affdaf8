#include "formats/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "support/compare.h"
#include "support/temp_dir.h"

namespace lapidary {
namespace {

using test::expect_error;
using test::TempDir;

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

size_t entries(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(MappedFile, ShowsTheBytesOfAFile) {
  const TempDir dir;
  const MappedFile file(dir.write("a.bin", std::string_view("hello")));
  EXPECT_EQ(text(file.bytes()), "hello");
  EXPECT_EQ(file.name(), (dir.path() / "a.bin").string());
}

TEST(MappedFile, MayBeEmpty) {
  const TempDir dir;
  EXPECT_TRUE(MappedFile(dir.write("empty", std::string_view())).bytes().empty());
}

TEST(MappedFile, MovesWithItsBytes) {
  const TempDir dir;
  MappedFile a(dir.write("a", std::string_view("first"))), b(dir.write("b", std::string_view("second")));
  const std::byte* address = a.bytes().data();
  MappedFile moved(std::move(a));
  EXPECT_EQ(moved.bytes().data(), address);
  EXPECT_TRUE(a.bytes().empty());  // NOLINT(bugprone-use-after-move): a moved-from file is empty
  b = std::move(moved);
  EXPECT_EQ(text(b.bytes()), "first");
}

TEST(MappedFile, OutlivesTheNameOfItsFile) {
  const TempDir dir;
  const auto path = dir.write("a", std::string_view("still here"));
  const MappedFile file(path);
  std::filesystem::remove(path);
  EXPECT_EQ(text(file.bytes()), "still here");
}

TEST(MappedFile, RefusesWhatIsNotAFile) {
  const TempDir dir;
  expect_error([&] { MappedFile(dir.path() / "absent"); }, ErrorCode::not_found,
               "absent: cannot open: No such file");
  const auto file = dir.write("file", std::string_view("x"));
  expect_error([&] { MappedFile(file / "below"); }, ErrorCode::not_found, "cannot open: Not a directory");
  expect_error([&] { MappedFile{dir.path()}; }, ErrorCode::io, "expected a regular file, got a directory");
  expect_error([&] { MappedFile("/dev/null"); }, ErrorCode::io,
               "/dev/null: expected a regular file, got a special file");
}

TEST(MappedFile, RefusesAPipeWithoutWaitingForItsWriter) {
  const TempDir dir;
  const auto pipe = dir.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_error([&] { MappedFile{pipe}; }, ErrorCode::io, "got a special file");
}

TEST(ReadTextFile, ReadsAllOfIt) {
  const TempDir dir;
  const std::string long_text(200'000, 'x');
  EXPECT_EQ(read_text_file(dir.write("long", std::string_view(long_text))), long_text);
  EXPECT_EQ(read_text_file(dir.write("empty", std::string_view())), "");
}

TEST(ReadTextFile, IsBounded) {
  const TempDir dir;
  const auto path = dir.write("a", std::string_view("12345"));
  EXPECT_EQ(read_text_file(path, 5), "12345");
  expect_error([&] { read_text_file(path, 4); }, ErrorCode::limit,
               "expected a text file of at most 4 bytes, got more");
  expect_error([&] { read_text_file("/dev/zero", 1 << 20); }, ErrorCode::limit, "at most 1048576 bytes");
  expect_error([&] { read_text_file(dir.path()); }, ErrorCode::io, "cannot read: Is a directory");
  expect_error([&] { read_text_file(dir.path() / "absent"); }, ErrorCode::not_found,
               "cannot open: No such file");
}

TEST(WriteFileAtomically, CreatesAndReplaces) {
  const TempDir dir;
  const auto path = dir.path() / "out.bin";
  write_file_atomically(path, bytes("one"));
  EXPECT_EQ(read_text_file(path), "one");
  write_file_atomically(path, bytes("two, longer"));
  EXPECT_EQ(read_text_file(path), "two, longer");
  EXPECT_EQ(entries(dir.path()), 1u);  // no temporary file stays
}

TEST(WriteFileAtomically, LeavesTheOldFileWhenItFails) {
  const TempDir dir;
  const auto path = dir.write("out.bin", std::string_view("old"));
  // A file size limit stands for a full disk.
  struct rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small = {1000, before.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto result = test::throws_error([&] { write_file_atomically(path, std::vector<std::byte>(5000)); },
                                         ErrorCode::io, "out.bin: cannot write: File too large");
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(result);
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(WriteFileAtomically, RefusesFoldersThatAreNotThere) {
  const TempDir dir;
  expect_error([&] { write_file_atomically(dir.path() / "no" / "out", bytes("x")); }, ErrorCode::not_found,
               "cannot create: No such file");
  std::filesystem::create_directories(dir.path() / "folder" / "inner");
  expect_error([&] { write_file_atomically(dir.path() / "folder", bytes("x")); }, ErrorCode::io,
               "folder: cannot rename to: ");
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(WriteFileAtomically, ManyWritersLeaveOneWholeFile) {
  const TempDir dir;
  const auto path = dir.path() / "out";
  std::vector<std::thread> writers;
  for (char c = 'a'; c < 'e'; ++c) {
    writers.emplace_back([&path, c] {
      const std::string content(10'000, c);
      for (int i = 0; i < 5; ++i) write_file_atomically(path, bytes(content));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string content = read_text_file(path);
  EXPECT_EQ(content, std::string(10'000, content.at(0)));
  EXPECT_EQ(entries(dir.path()), 1u);
}

}  // namespace
}  // namespace lapidary
