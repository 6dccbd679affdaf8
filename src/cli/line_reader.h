// Lines typed at a terminal: editing (by libedit), history in a file, and the two keys that mean something.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace lapidary {

class LineReader {
 public:
  // The file is read now and written after every line; private to the user. A file that cannot be used costs
  // the history only.
  LineReader(std::string prompt, std::filesystem::path history_file);
  ~LineReader();
  LineReader(const LineReader&) = delete;

  // ctrl_c: the line was given up; ctrl_d (on an empty line): the end.
  enum class Key { enter, ctrl_c, ctrl_d };
  Key read(std::string& line);
  void set_prompt(std::string prompt);
  void remember(const std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary
