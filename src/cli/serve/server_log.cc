#include "cli/serve/server_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <chrono>
#include <cmath>

#include "cli/numbers.h"
#include "cli/terminal.h"

namespace lapidary {
namespace {

namespace json = boost::json;

constexpr size_t kQueuedLines = 8192;

const char* level_name(ServerLog::Level level) {
  switch (level) {
    case ServerLog::Level::info: return "info";
    case ServerLog::Level::warning: return "warning";
    case ServerLog::Level::error: return "error";
  }
  return "error";
}

// RFC 3339, UTC, to the millisecond.
std::string timestamp() {
  const auto now = std::chrono::system_clock::now();
  const auto whole = std::chrono::floor<std::chrono::seconds>(now);
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(now - whole).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03d}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                     rest);
}

double rounded(double seconds) {
  return std::round(seconds * 1e6) / 1e6;
}

struct Tokens {
  int64_t prompt = 0, cached = 0, generated = 0;
};

Tokens tokens_of(const serve::RequestRecord& record) {
  Tokens sum;
  for (const serve::JobEnd& end : record.texts) {
    sum.prompt += end.prompt_tokens;
    sum.cached += end.cached_tokens;
    sum.generated += end.generated_tokens;
  }
  return sum;
}

json::object text_json(const serve::JobEnd& end) {
  json::object out{{"end", serve::end_reason_name(end.reason)},
                   {"prompt_tokens", end.prompt_tokens},
                   {"cached_tokens", end.cached_tokens},
                   {"generated_tokens", end.generated_tokens},
                   {"reuse", serve::reuse_name(end.reuse)},
                   {"queue_seconds", rounded(end.queue_seconds)},
                   {"prefill_seconds", rounded(end.prefill_seconds)},
                   {"decode_seconds", rounded(end.decode_seconds)}};
  if (end.preemptions > 0) out["preemptions"] = end.preemptions;
  if (!end.error.empty()) out["error"] = end.error;
  return out;
}

ServerLog::Level level_of(const serve::RequestRecord& record) {
  return record.status >= 500 || !record.internal_error.empty() ? ServerLog::Level::error
                                                                : ServerLog::Level::info;
}

}  // namespace

LogFormat log_format_from_name(std::string_view name) {
  if (name == "auto") return is_terminal(STDERR_FILENO) ? LogFormat::text : LogFormat::json;
  return name == "text" ? LogFormat::text : LogFormat::json;
}

json::object record_json(const serve::RequestRecord& record) {
  json::object out{{"id", record.id},
                   {"client", record.client},
                   {"method", record.method},
                   {"endpoint", record.endpoint},
                   {"status", record.status},
                   {"stream", record.stream},
                   {"seconds", rounded(record.seconds)}};
  if (!record.error_code.empty()) out["error_code"] = record.error_code;
  if (!record.error_param.empty()) out["error_param"] = record.error_param;
  if (!record.internal_error.empty()) out["internal_error"] = record.internal_error;
  if (record.loops_ended > 0) out["loops_ended"] = record.loops_ended;
  if (record.reserved_wanted > 0) out["reserved_wanted"] = record.reserved_wanted;
  if (record.first_token_seconds >= 0) out["first_token_seconds"] = rounded(record.first_token_seconds);
  if (record.texts.empty()) return out;
  const Tokens sum = tokens_of(record);
  out["prompt_tokens"] = sum.prompt;
  out["cached_tokens"] = sum.cached;
  out["generated_tokens"] = sum.generated;
  json::array texts;
  for (const serve::JobEnd& end : record.texts) texts.push_back(text_json(end));
  out["texts"] = std::move(texts);
  return out;
}

std::string record_text(const serve::RequestRecord& record) {
  std::string out =
      fmt::format("{} {} {} {}", record.method, record.endpoint, record.status, seconds_text(record.seconds));
  if (!record.error_code.empty()) out += fmt::format(", {}", record.error_code);
  if (!record.error_param.empty()) out += fmt::format(" ({})", record.error_param);
  if (!record.texts.empty()) {
    const Tokens sum = tokens_of(record);
    out += fmt::format(", {} tokens in ({} cached), {} out", sum.prompt, sum.cached, sum.generated);
    if (record.first_token_seconds >= 0)
      out += fmt::format(", first after {}", seconds_text(record.first_token_seconds));
    for (const serve::JobEnd& end : record.texts)
      out += fmt::format(", {}", serve::end_reason_name(end.reason));
  }
  if (!record.internal_error.empty()) out += fmt::format(": {}", record.internal_error);
  return out + fmt::format(" [{}, {}]", record.client, record.id);
}

// The pool before the logger: a logger hands its lines to the pool until it is gone.
struct ServerLog::Impl {
  std::shared_ptr<spdlog::details::thread_pool> pool =
      std::make_shared<spdlog::details::thread_pool>(kQueuedLines, 1);
  std::shared_ptr<spdlog::async_logger> logger =
      std::make_shared<spdlog::async_logger>("serve", std::make_shared<spdlog::sinks::stderr_sink_mt>(), pool,
                                             spdlog::async_overflow_policy::overrun_oldest);
  Style style = Style::for_fd(STDERR_FILENO);
  Impl() {
    logger->set_pattern("%v");
    logger->flush_on(spdlog::level::trace);
  }
};

ServerLog::ServerLog(LogFormat format) : format_(format), impl_(std::make_unique<Impl>()) {}

ServerLog::~ServerLog() {
  if (const size_t lost = impl_->pool->overrun_counter(); lost > 0)
    write(Level::warning, "log_lines_dropped", fmt::format("{} lines of this log were dropped", lost),
          {{"lines", lost}});
}

void ServerLog::write(Level level, std::string_view event, const std::string& text, json::object fields) {
  if (format_ == LogFormat::json) {
    json::object out{{"time", timestamp()}, {"level", level_name(level)}, {"event", event}};
    if (!text.empty()) out["message"] = text;
    for (auto& [key, value] : fields) out[key] = std::move(value);
    return raw(json::serialize(out));
  }
  const std::string stamp = timestamp().substr(11, 12);
  const std::string safe = terminal_safe(text);
  raw(fmt::format("{} {}", impl_->style.dim(stamp),
                  level == Level::info      ? safe
                  : level == Level::warning ? impl_->style.bold("warning: ") + safe
                                            : impl_->style.red("error: ") + safe));
}

void ServerLog::on_request(const serve::RequestRecord& record) {
  if (format_ == LogFormat::json) write(level_of(record), "request", "", record_json(record));
  else write(level_of(record), "request", record_text(record), {});
}

void ServerLog::raw(const std::string& text) {
  impl_->logger->info("{}", text);
}

}  // namespace lapidary
