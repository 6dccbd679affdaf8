#include "formats/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
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

}  // namespace
}  // namespace lapidary
