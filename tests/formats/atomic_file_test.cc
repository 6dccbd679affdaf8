#include "formats/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "formats/mapped_file.h"
#include "support/compare.h"
#include "support/small_files.h"
#include "support/temp_dir.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::SmallFiles;
using test::TempDir;

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

size_t entries(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<size_t>(std::distance(begin(all), end(all)));
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
  {
    const SmallFiles limit(1000);
    EXPECT_TRUE(
        test::throws_error([&] { write_file_atomically(path, std::vector<std::byte>(5000)); }, ErrorCode::io,
                           "out.bin: cannot write: File too large (1000 bytes written, 4000 more wanted)"));
  }
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(WriteFileAtomically, RefusesFoldersThatAreNotThere) {
  const TempDir dir;
  expect_error([&] { write_file_atomically(dir.path() / "no" / "out", bytes("x")); }, ErrorCode::not_found,
               "cannot create: No such file");
  std::filesystem::create_directories(dir.path() / "folder" / "inner");
  expect_error([&] { write_file_atomically(dir.path() / "folder", bytes("x")); }, ErrorCode::io,
               "folder: expected a file or nothing there, got a folder");
  EXPECT_EQ(entries(dir.path()), 1u);
}

// At once, and not when all is written.
TEST(AtomicFile, RefusesWhatCannotBeItsTarget) {
  const TempDir dir;
  const auto refused = [&](const fs::path& path, ErrorCode code, const std::string& part) {
    expect_error([&] { const AtomicFile file(path); }, code, part, path.string());
  };
  fs::create_directories(dir.path() / "folder");
  refused("", ErrorCode::usage, "expected the name of a file to write, got an empty one");
  refused(dir.path() / "new" / "", ErrorCode::usage, "got one that ends in a slash");
  refused(dir.path() / "..", ErrorCode::usage, "got one that ends in \"..\"");
  refused(dir.path() / "folder", ErrorCode::io, "folder: expected a file or nothing there, got a folder");
  ASSERT_EQ(::mkfifo((dir.path() / "pipe").c_str(), 0600), 0);
  refused(dir.path() / "pipe", ErrorCode::io, "got what is neither a file nor a folder");
  refused(dir.path() / std::string(300, 'x'), ErrorCode::io, "x: cannot look at: File name too long");
  EXPECT_EQ(entries(dir.path()), 2u);
}

TEST(AtomicFolder, RefusesWhatCannotBeItsTarget) {
  const TempDir dir;
  const auto refused = [&](const fs::path& path, ErrorCode code, const std::string& part) {
    expect_error([&] { const AtomicFolder folder(path, AtomicFolder::Existing::replace); }, code, part,
                 path.string());
  };
  dir.write("file", std::string_view("mine"));
  refused("", ErrorCode::usage, "expected the name of a folder to write, got an empty one");
  refused(dir.path() / ".", ErrorCode::usage, "got one that ends in \".\"");
  refused(dir.path() / "file", ErrorCode::io, "file: expected a folder or nothing there, got a file");
  refused(dir.path() / std::string(300, 'x'), ErrorCode::io, "x: cannot look at: File name too long");
  EXPECT_EQ(entries(dir.path()), 1u);
}

// The new folder cannot be opened for as long as all descriptors are taken: an error, not another attempt.
TEST(AtomicFolder, GivesUpWhenItsFolderCannotBeOpened) {
  const TempDir dir;
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const struct rlimit none = {0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  ::alarm(30);  // ends a process that goes on for ever
  const auto failed = test::throws_error(
      [&] { const AtomicFolder folder(dir.path() / "model", AtomicFolder::Existing::refuse); }, ErrorCode::io,
      "model: cannot open the new folder beside: Too many open files");
  ::alarm(0);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(failed);
  EXPECT_EQ(entries(dir.path()), 0u);
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

TEST(AtomicFile, IsSeenOnlyOnceCommitted) {
  const TempDir dir;
  const auto path = dir.path() / "out";
  AtomicFile file(path);
  file.write(bytes("one "));
  EXPECT_EQ(file.position(), 4);
  file.write(bytes("two"));
  EXPECT_EQ(file.position(), 7);
  EXPECT_FALSE(fs::exists(path));
  file.commit();
  EXPECT_EQ(read_text_file(path), "one two");
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(AtomicFile, LeavesNothingWhenAbandoned) {
  const TempDir dir;
  {
    AtomicFile file(dir.path() / "out");
    file.write(bytes("half"));
    EXPECT_EQ(entries(dir.path()), 1u);
  }
  EXPECT_EQ(entries(dir.path()), 0u);
}

// Runs `write` in a process of its own and kills that where `write` ends.
template <typename F>
void killed_after(F write) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    write();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(AtomicFile, RemovesWhatKilledWritersLeft) {
  const TempDir dir;
  const auto path = dir.path() / "out";
  dir.write(".out.old.tmp", std::string_view("a user's own"));
  dir.write(".out.1.tmp", std::string_view("another of the user's"));
  const auto leave = [&] {
    killed_after([&] {
      auto* file = new AtomicFile(path);
      file->write(bytes("half"));
    });
  };
  leave();
  EXPECT_EQ(entries(dir.path()), 3u);
  EXPECT_FALSE(fs::exists(path));
  AtomicFile other(dir.path() / "other");  // another target's leftovers are none of its business
  EXPECT_EQ(entries(dir.path()), 4u);
  AtomicFile living(path);
  EXPECT_EQ(entries(dir.path()), 4u);
  write_file_atomically(path, bytes("whole"));  // a living writer's temporary stays
  EXPECT_EQ(read_text_file(path), "whole");
  EXPECT_EQ(entries(dir.path()), 5u);
  living.write(bytes("later"));
  living.commit();
  EXPECT_EQ(read_text_file(path), "later");
}

TEST(AtomicFolder, IsSeenWhole) {
  const TempDir dir;
  const auto path = dir.path() / "model";
  {
    AtomicFolder abandoned(path, AtomicFolder::Existing::refuse);
    write_file_atomically(abandoned.temporary() / "a", bytes("1"));
  }
  EXPECT_EQ(entries(dir.path()), 0u);
  AtomicFolder folder(path / "", AtomicFolder::Existing::refuse);
  write_file_atomically(folder.temporary() / "a", bytes("1"));
  write_file_atomically(folder.temporary() / "b", bytes("2"));
  EXPECT_FALSE(fs::exists(path));
  folder.commit();
  EXPECT_EQ(entries(path), 2u);
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(AtomicFolder, RefusesToReplaceUnlessTold) {
  const TempDir dir;
  const auto path = dir.path() / "model";
  fs::create_directories(path);  // empty: nothing is lost
  AtomicFolder(path, AtomicFolder::Existing::refuse).commit();
  dir.write("model/old", std::string_view("x"));
  expect_error([&] { AtomicFolder(path, AtomicFolder::Existing::refuse); }, ErrorCode::io,
               "model: expected nothing there or an empty folder");
  AtomicFolder folder(path, AtomicFolder::Existing::replace);
  write_file_atomically(folder.temporary() / "new", bytes("y"));
  EXPECT_TRUE(fs::exists(path / "old"));
  folder.commit();
  EXPECT_TRUE(fs::exists(path / "new"));
  EXPECT_FALSE(fs::exists(path / "old"));
  EXPECT_EQ(entries(dir.path()), 1u);
  expect_error([&] { AtomicFolder(dir.path() / "no" / "model", AtomicFolder::Existing::refuse); },
               ErrorCode::not_found, "model: cannot create: No such file");
}

TEST(AtomicFolder, RemovesWhatKilledWritersLeft) {
  const TempDir dir;
  const auto path = dir.path() / "model";
  killed_after([&] {
    auto* folder = new AtomicFolder(path, AtomicFolder::Existing::refuse);
    write_file_atomically(folder->temporary() / "a", bytes("1"));
  });
  EXPECT_EQ(entries(dir.path()), 1u);
  AtomicFolder folder(path, AtomicFolder::Existing::refuse);
  EXPECT_EQ(entries(dir.path()), 1u);
  folder.commit();
  EXPECT_EQ(entries(dir.path()), 1u);
  EXPECT_EQ(entries(path), 0u);
}

}  // namespace
}  // namespace lapidary
