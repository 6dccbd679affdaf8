#include "cli/line_reader.h"

#include <fcntl.h>
#include <histedit.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>

namespace lapidary {

struct LineReader::Impl {
  std::string prompt;
  std::filesystem::path history_file;
  EditLine* editor = nullptr;
  History* history = nullptr;
  bool gave_up = false;  // Ctrl-C

  static Impl& of(EditLine* editor) {
    void* data = nullptr;
    el_get(editor, EL_CLIENTDATA, &data);
    return *static_cast<Impl*>(data);
  }
  static char* show_prompt(EditLine* editor) { return of(editor).prompt.data(); }
  static unsigned char on_ctrl_c(EditLine* editor, int) {
    of(editor).gave_up = true;
    return CC_NEWLINE;
  }
  static unsigned char on_ctrl_z(EditLine*, int) {
    std::raise(SIGTSTP);  // libedit's handler gives the terminal back, stops, and redraws afterwards
    return CC_REDISPLAY;
  }
};

LineReader::LineReader(std::string prompt, std::filesystem::path history_file)
    : impl_(std::make_unique<Impl>()) {
  // libedit speaks wide characters: without a UTF-8 locale it would show other letters as octal numbers.
  const char* locale = std::setlocale(LC_CTYPE, "");
  if (locale == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
  impl_->prompt = std::move(prompt);
  impl_->history_file = std::move(history_file);
  impl_->history = history_init();
  impl_->editor = el_init("lapidary", stdin, stdout, stderr);
  HistEvent event;
  history(impl_->history, &event, H_SETSIZE, 1000);
  history(impl_->history, &event, H_SETUNIQUE, 1);
  history(impl_->history, &event, H_LOAD, impl_->history_file.c_str());
  el_set(impl_->editor, EL_CLIENTDATA, impl_.get());
  el_set(impl_->editor, EL_PROMPT, &Impl::show_prompt);
  el_set(impl_->editor, EL_EDITOR, "emacs");
  el_set(impl_->editor, EL_HIST, history, impl_->history);
  el_set(impl_->editor, EL_SIGNAL, 1);
  el_set(impl_->editor, EL_ADDFN, "give-up", "Gives up the line", &Impl::on_ctrl_c);
  el_set(impl_->editor, EL_ADDFN, "suspend", "Stops the program for now", &Impl::on_ctrl_z);
  // While a line is edited Ctrl-C and Ctrl-Z are keys; they are signals again as soon as the line is read.
  el_set(impl_->editor, EL_SETTY, "-d", "-isig", nullptr);
  el_set(impl_->editor, EL_BIND, "^C", "give-up", nullptr);
  el_set(impl_->editor, EL_BIND, "^Z", "suspend", nullptr);
  el_set(impl_->editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
}

LineReader::~LineReader() {
  el_end(impl_->editor);
  history_end(impl_->history);
}

LineReader::Key LineReader::read(std::string& line) {
  impl_->gave_up = false;
  int count = 0;
  // Before the prompt shows: keys typed at its sight are the editor's, and not the line discipline's.
  el_set(impl_->editor, EL_PREP_TERM, 1);
  const char* text = el_gets(impl_->editor, &count);
  if (impl_->gave_up) {
    std::fputs("\n", stdout);
    return Key::ctrl_c;
  }
  if (text == nullptr || count <= 0) return Key::ctrl_d;
  line.assign(text, static_cast<size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return Key::enter;
}

void LineReader::set_prompt(std::string prompt) {
  impl_->prompt = std::move(prompt);
}

void LineReader::remember(const std::string& line) {
  HistEvent event;
  history(impl_->history, &event, H_ENTER, line.c_str());
  std::error_code ignored;  // a read-only home is no reason to stop a chat
  std::filesystem::create_directories(impl_->history_file.parent_path(), ignored);
  // Made here, because libedit would let everybody read it.
  const int fd = open(impl_->history_file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return;
  close(fd);
  history(impl_->history, &event, H_SAVE, impl_->history_file.c_str());
}

}  // namespace lapidary
