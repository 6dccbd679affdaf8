#include "cli/serve/key_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/error.h"
#include "formats/mapped_file.h"

namespace lapidary {
namespace {

constexpr size_t kMaxFile = size_t{1} << 20;
constexpr std::string_view kBlanks = " \t\r";

bool is_name(std::string_view text) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), good);
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (;;) {
    const size_t begin = line.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos || line[begin] == '#') return words;
    const size_t end = std::min(line.find_first_of(kBlanks, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
}

ApiKey parse_line(const std::vector<std::string_view>& words, const std::string& where) {
  ensure(words.size() == 2, ErrorCode::data, "{}: expected a name and a key, got {} word{}", where,
         words.size(), words.size() == 1 ? "" : "s");
  ensure(is_name(words[0]), ErrorCode::data,
         "{}: the name must be 1 to 64 letters, digits, dots, underscores and hyphens", where);
  const auto printable = [](char c) { return c > ' ' && c <= '~'; };
  ensure(words[1].size() >= 16 && words[1].size() <= 512, ErrorCode::data,
         "{}: the key has {} characters, expected 16 to 512", where, words[1].size());
  ensure(std::all_of(words[1].begin(), words[1].end(), printable), ErrorCode::data,
         "{}: the key has characters that are not printable ASCII", where);
  return {std::string(words[0]), std::string(words[1])};
}

}  // namespace

std::vector<ApiKey> parse_keys(std::string_view text, const std::string& file) {
  std::vector<ApiKey> keys;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;
    const std::string where = fmt::format("{}: line {}", file, line);
    ApiKey key = parse_line(words, where);
    for (const ApiKey& other : keys) {
      ensure(other.name != key.name, ErrorCode::data, "{}: the name {} is there twice", where, key.name);
      ensure(other.key != key.key, ErrorCode::data, "{}: the key is that of {} too", where, other.name);
    }
    keys.push_back(std::move(key));
  }
  ensure(!keys.empty(), ErrorCode::data, "{}: there is no key in it: nobody could call", file);
  return keys;
}

bool same_key(std::string_view known, std::string_view given) {
  size_t difference = known.size() ^ given.size();
  for (size_t i = 0; i < known.size(); ++i) {
    const char other = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned char>(known[i] ^ other);
    asm volatile("" : "+r"(difference));  // so that no compiler ends the loop at the first difference
  }
  return difference == 0;
}

KeyFile::KeyFile(std::filesystem::path path, Log log) : path_(std::move(path)), log_(std::move(log)) {
  read();
}

void KeyFile::read() {
  seen_ = stamp();  // first: what changes meanwhile is seen the next time
  auto fresh = std::make_shared<const Keys>(parse_keys(read_text_file(path_, kMaxFile), path_.string()));
  warn_of_mode();
  const std::lock_guard lock(mutex_);
  keys_ = std::move(fresh);
}

KeyFile::Stamp KeyFile::stamp() const {
  struct stat info {};
  if (stat(path_.c_str(), &info) != 0) return {};
  return {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino), info.st_size,
          info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

void KeyFile::warn_of_mode() const {
  struct stat info {};
  if (stat(path_.c_str(), &info) != 0 || (info.st_mode & (S_IRWXO | S_IWGRP)) == 0) return;
  log_(fmt::format("{} has mode {:04o}: others than its owner can read or change it (chmod 600)",
                   path_.string(), info.st_mode & 07777));
}

std::shared_ptr<const KeyFile::Keys> KeyFile::keys() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

size_t KeyFile::size() const {
  return keys()->size();
}

std::optional<std::string> KeyFile::find(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != kScheme[i]) return {};
  }
  std::string_view given = authorization.substr(kScheme.size());
  given.remove_prefix(std::min(given.find_first_not_of(' '), given.size()));
  given = given.substr(0, given.find_last_not_of(' ') + 1);
  const ApiKey* found = nullptr;
  const std::shared_ptr<const Keys> keys = this->keys();
  for (const ApiKey& key : *keys) {
    if (same_key(key.key, given)) found = &key;
  }
  return found ? std::optional(found->name) : std::nullopt;
}

bool KeyFile::reload() {
  try {
    read();
    return true;
  } catch (const Error& error) {
    log_(fmt::format("the API keys stay as they were: {}", error.what()));
    return false;
  }
}

bool KeyFile::reload_if_changed() {
  return stamp() != seen_ && reload();
}

}  // namespace lapidary
