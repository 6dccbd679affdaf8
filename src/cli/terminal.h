// What the program may do to a terminal: colours, a progress line, an interrupt that stops the work and not
// the program.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lapidary {

bool is_terminal(int fd);
// Characters of a UTF-8 text. Our own tables hold no wide or combining characters.
size_t display_width(std::string_view utf8);
// Text from a model or a file, fit for a terminal: control characters but newline and tab become visible (ESC
// → "␛").
std::string terminal_safe(std::string_view utf8);

// Colours, or none: only on a terminal, never with NO_COLOR set or TERM=dumb.
class Style {
 public:
  explicit Style(bool coloured) : coloured_(coloured) {}
  static Style for_fd(int fd);
  std::string bold(std::string_view text) const { return wrap("1", text); }
  std::string dim(std::string_view text) const { return wrap("2", text); }
  std::string red(std::string_view text) const { return wrap("31", text); }
  std::string cyan(std::string_view text) const { return wrap("36", text); }

 private:
  std::string wrap(const char* code, std::string_view text) const;
  bool coloured_;
};

// One line on stderr that is rewritten in place; silent unless stderr is a terminal, and for work that ends
// within 0.3 seconds.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();
  Progress(const Progress&) = delete;
  void show(int64_t done, int64_t total, bool in_bytes);
  void clear();

 private:
  std::string label_;
  bool active_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

// The progress of work that is of several kinds, one after the other: a new line for each.
class WorkLine {
 public:
  void operator()(std::string_view what, int64_t done, int64_t total);
  void clear() { progress_.reset(); }

 private:
  std::string what_;
  std::optional<Progress> progress_;
};

// While it lives, Ctrl-C sets a mark that the work looks at between steps. A second Ctrl-C ends the program
// if `second_ends`. One at a time. An ignored SIGINT (background jobs of a script) stays ignored.
class InterruptScope {
 public:
  explicit InterruptScope(bool second_ends);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  static bool requested();
  static void forget();  // what was requested so far

 private:
  bool installed_ = false;
};

// Writes to stdout at once. Throws Error(io) when it cannot: a full disk must not look like success.
void write_out(std::string_view text);
void write_err(std::string_view text);

}  // namespace lapidary
