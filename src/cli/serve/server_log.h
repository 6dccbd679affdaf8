// What the server says on standard error: one line for each request, and for what an operator should know. No
// prompt, no answer, no key.
#pragma once

#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "serve/record.h"

namespace lapidary {

enum class LogFormat { text, json };

// Of --log-format: auto is text on a terminal.
LogFormat log_format_from_name(std::string_view name);

// The fields of one request's line: {"id", "client", "method", "endpoint", "status", "seconds", ...}.
boost::json::object record_json(const serve::RequestRecord& record);
std::string record_text(const serve::RequestRecord& record);

// Lines are handed to a thread of its own. A reader of standard error that does not keep up never holds up
// the server: the oldest lines are dropped then, and their number is said at the end. From any thread.
class ServerLog : public serve::Observer {
 public:
  explicit ServerLog(LogFormat format);
  ~ServerLog() override;  // writes what is left
  ServerLog(const ServerLog&) = delete;

  enum class Level { info, warning, error };
  // `event` is a stable word; `text` is for people, `fields` for programs.
  void write(Level level, std::string_view event, const std::string& text, boost::json::object fields = {});
  void on_request(const serve::RequestRecord& record) override;
  LogFormat format() const { return format_; }
  void raw(const std::string& text);  // as it stands, whatever the format

 private:
  struct Impl;
  LogFormat format_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary
