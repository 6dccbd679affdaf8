#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "cli/numbers.h"

namespace lapidary {
namespace {

volatile std::sig_atomic_t interrupt_requested = 0;
volatile std::sig_atomic_t second_interrupt_ends = 0;
struct sigaction previous_action;

void on_interrupt(int) {
  if (interrupt_requested != 0 && second_interrupt_ends != 0) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  interrupt_requested = 1;
}

}  // namespace

bool is_terminal(int fd) {
  return isatty(fd) == 1;
}

size_t display_width(std::string_view utf8) {
  size_t width = 0;
  for (const char c : utf8) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return width;
}

std::string terminal_safe(std::string_view utf8) {
  std::string out;
  out.reserve(utf8.size());
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    const auto next = i + 1 < utf8.size() ? static_cast<unsigned char>(utf8[i + 1]) : 0u;
    if (byte < 0x20 && byte != '\n' && byte != '\t') {
      out += {'\xE2', '\x90',
              static_cast<char>(0x80 + byte)};  // U+2400 + byte: the picture of the control character
    } else if (byte == 0x7F) {
      out += "\xE2\x90\xA1";
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // C1 controls, which some terminals obey
      out += "\xEF\xBF\xBD";
      ++i;
    } else {
      out += utf8[i];
    }
  }
  return out;
}

Style Style::for_fd(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool refused =
      (no_color != nullptr && *no_color != '\0') || (term != nullptr && std::strcmp(term, "dumb") == 0);
  return Style(is_terminal(fd) && !refused);
}

std::string Style::wrap(const char* code, std::string_view text) const {
  if (!coloured_ || text.empty()) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

Progress::Progress(std::string label)
    : label_(std::move(label)),
      active_(is_terminal(STDERR_FILENO)),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

Progress::~Progress() {
  clear();
}

void Progress::show(int64_t done, int64_t total, bool in_bytes) {
  if (!active_ || total <= 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - start_ < std::chrono::milliseconds(300) ||
      (drawn_ && now - last_ < std::chrono::milliseconds(80)))
    return;
  last_ = now;
  drawn_ = true;
  const auto amount = [&](int64_t n) { return in_bytes ? bytes_text(n) : grouped(n); };
  const double share = 100.0 * static_cast<double>(done) / static_cast<double>(total);
  write_err(fmt::format("\r\x1b[K{} {:3.0f} %  {} of {}", label_, share, amount(done), amount(total)));
}

void Progress::clear() {
  if (drawn_) write_err("\r\x1b[K");
  drawn_ = false;
}

void WorkLine::operator()(std::string_view what, int64_t done, int64_t total) {
  if (!progress_ || what != what_) {
    what_ = what;
    progress_.reset();  // the old line goes before the new one comes
    progress_.emplace(what_);
  }
  progress_->show(done, total, false);
}

InterruptScope::InterruptScope(bool second_ends) {
  interrupt_requested = 0;
  second_interrupt_ends = second_ends ? 1 : 0;
  sigaction(SIGINT, nullptr, &previous_action);
  if (previous_action.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  installed_ = sigaction(SIGINT, &action, nullptr) == 0;
}

InterruptScope::~InterruptScope() {
  if (installed_) sigaction(SIGINT, &previous_action, nullptr);
}

bool InterruptScope::requested() {
  return interrupt_requested != 0;
}

void InterruptScope::forget() {
  interrupt_requested = 0;
}

void write_out(std::string_view text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  ensure(written, ErrorCode::io, "cannot write to standard output: {}", std::strerror(errno));
}

void write_err(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);  // nowhere left to report a failure
  std::fflush(stderr);
}

}  // namespace lapidary
