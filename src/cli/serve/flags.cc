#include "cli/serve/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/error.h"
#include "base/quote.h"
#include "cli/byte_sizes.h"
#include "cli/flags.h"

namespace lapidary {
namespace {

CLI::Validator seconds(double least) {
  const auto check = [least](const std::string& text) -> std::string {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value)) return fmt::format("{} is no number of seconds", text);
    if (value >= least && value <= 1e6) return {};
    return fmt::format("{} is not between {} and 1000000 seconds", text, least);
  };
  return CLI::Validator(check, "");
}

void add_address_flags(CLI::App& command, ServeFlags& flags) {
  const auto group = "Address and access";
  command
      .add_option("--host", flags.host,
                  "Address to listen on; 0.0.0.0 or :: for every interface (default 127.0.0.1)")
      ->check(not_empty())
      ->group(group);
  command.add_option("--port", flags.port, "Port; 0 takes any free one (default 8080)")
      ->check(between(0, 65535))
      ->group(group);
  command
      .add_option("--name", flags.name,
                  "What clients call the model (default: its name in the cache, or its file's)")
      ->check(not_empty())
      ->group(group);
  command
      .add_option(
          "--api-keys", flags.keys_file,
          "File of keys, a line each: NAME KEY. Read again when it changes and on SIGHUP (default: no "
          "key is needed)")
      ->check(not_empty())
      ->group(group);
  command
      .add_option("--cors", flags.cors_origins,
                  "Origin whose pages may call, as in https://chat.example.org; * allows all; repeatable "
                  "(default: none)")
      ->allow_extra_args(false)
      ->check(not_empty())
      ->group(group);
  command
      .add_option("--allow-host", flags.allowed_hosts,
                  "Name that requests may carry in Host beside loopback names, while bound to a loopback "
                  "address; repeatable (default: none)")
      ->allow_extra_args(false)
      ->check(not_empty())
      ->group(group);
}

void add_load_flags(CLI::App& command, ServeFlags& flags) {
  const auto group = "Scheduling and memory";
  command.add_option("--parallel", flags.parallel, "Texts that are computed at once (default 16)")
      ->check(between(1, 1024))
      ->group(group);
  command.add_option("--queue", flags.queue, "Texts that may wait; more are refused with 429 (default 256)")
      ->check(between(0, 1'000'000))
      ->group(group);
  command
      .add_option("--kv-bytes", flags.kv_bytes,
                  "Memory of the KV cache, as in 4GiB (default: half of what is free beside the weights; at "
                  "least one text of the whole context)")
      ->check(not_empty())
      ->group(group);
  command.add_flag("--no-prefix-cache", flags.no_prefix_cache, "Compute every prompt from its beginning")
      ->group(group);
  command
      .add_option("--cache-entries", flags.cache_entries, "Texts that the prefix cache may hold (default 64)")
      ->check(between(1, 4096))
      ->group(group);
  command
      .add_option("--kv-dir", flags.kv_folder,
                  "Folder in which the prefix cache outlives the server (default: it does not)")
      ->check(not_empty())
      ->group(group);
  command
      .add_option("--step-ms", flags.step_milliseconds,
                  "Milliseconds that a step with prompt rows should take while texts are being generated "
                  "(default 100)")
      ->check(CLI::Range(1.0, 60'000.0))
      ->group(group);
}

void add_request_flags(CLI::App& command, ServeFlags& flags) {
  const auto group = "Requests";
  command
      .add_option("--default-max-tokens", flags.default_max_tokens,
                  "Tokens of an answer where the request names no limit (default 1024)")
      ->check(at_least(1))
      ->group(group);
  command
      .add_option("--max-tokens", flags.max_tokens,
                  "The most tokens that a request may ask for; 0: the context (default 0)")
      ->check(at_least(0))
      ->group(group);
  command
      .add_option("--timeout", flags.timeout_seconds,
                  "Seconds after which a request ends; 0: never (default 600)")
      ->check(seconds(0))
      ->group(group);
  command
      .add_option("--max-texts", flags.max_texts,
                  "Texts of one request: n, best_of, prompts of a batch (default 16)")
      ->check(between(1, 1024))
      ->group(group);
  command.add_option("--max-stops", flags.max_stops, "Stop texts of one request (default 16)")
      ->check(between(0, 1024))
      ->group(group);
  command
      .add_option("--max-schema-bytes", flags.max_schema_bytes,
                  "Size of a JSON schema or grammar (default 256KiB)")
      ->group(group);
  command
      .add_flag("--loop-guard", flags.loop_guard,
                "End a chat's text that goes on repeating itself; raw completions are left alone")
      ->group(group);
  command
      .add_flag("--reserved-guard", flags.reserved_guard,
                "Never draw tokens that the vocabulary reserves, and count when the model wants one")
      ->group(group);
  command
      .add_option("--chat-template", flags.template_file,
                  "Jinja file of a chat template (default: the model's own)")
      ->check(not_empty())
      ->group(group);
}

void add_http_flags(CLI::App& command, ServeFlags& flags) {
  const auto group = "HTTP";
  command.add_option("--max-body", flags.max_body, "Size of a request's body (default 16MiB)")->group(group);
  command.add_option("--max-connections", flags.max_connections, "Connections at once (default 512)")
      ->check(between(1, 65536))
      ->group(group);
  command
      .add_option("--header-timeout", flags.header_seconds, "Seconds for a request's headers (default 10)")
      ->check(seconds(0.1))
      ->group(group);
  command.add_option("--body-timeout", flags.body_seconds, "Seconds for a request's body (default 60)")
      ->check(seconds(0.1))
      ->group(group);
  command
      .add_option("--idle-timeout", flags.idle_seconds,
                  "Seconds that a connection may wait between requests (default 120)")
      ->check(seconds(0.1))
      ->group(group);
  command
      .add_option("--write-timeout", flags.write_seconds,
                  "Seconds after which a reader that takes nothing is gone (default 60)")
      ->check(seconds(0.1))
      ->group(group);
}

size_t bytes_of(const std::string& text, std::string_view flag, int64_t most) {
  const int64_t bytes = parse_byte_size(text, flag);
  ensure(bytes >= 1 && bytes <= most, ErrorCode::usage, "{}: expected 1B to {}, got {}", flag,
         binary_text(most), lapidary::quoted(text));
  return static_cast<size_t>(bytes);
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

void add_serve_flags(CLI::App& command, ServeFlags& flags) {
  command.add_option("MODEL", flags.model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  add_address_flags(command, flags);
  add_load_flags(command, flags);
  add_exact_engine_flags(command, flags.engine);
  add_request_flags(command, flags);
  add_http_flags(command, flags);
  const auto group = "Operation";
  command
      .add_option("--drain-seconds", flags.drain_seconds,
                  "Seconds that running requests get after SIGTERM or Ctrl-C (default 30)")
      ->check(seconds(0))
      ->group(group);
  command
      .add_option("--log-format", flags.log_format,
                  "Lines on standard error: json, text, or auto, which is text on a terminal and json "
                  "elsewhere (default auto)")
      ->check(CLI::IsMember({"auto", "text", "json"}))
      ->group(group);
}

serve::ApiLimits api_limits(const ServeFlags& flags) {
  serve::ApiLimits limits;
  limits.default_max_tokens = flags.default_max_tokens;
  limits.max_tokens = flags.max_tokens;
  limits.max_texts = flags.max_texts;
  limits.max_stops = flags.max_stops;
  limits.max_schema_bytes = bytes_of(flags.max_schema_bytes, "--max-schema-bytes", int64_t{64} << 20);
  limits.request_seconds = flags.timeout_seconds;
  limits.loop_guard = flags.loop_guard;
  limits.reserved_guard = flags.reserved_guard;
  return limits;
}

serve::HttpOptions http_options(const ServeFlags& flags) {
  serve::HttpOptions options;
  options.address = flags.host;
  options.port = static_cast<uint16_t>(flags.port);
  options.workers = 4;  // a grammar may take one of them for seconds
  options.max_connections = flags.max_connections;
  options.max_body_bytes = bytes_of(flags.max_body, "--max-body", int64_t{1} << 30);
  options.max_body_total = std::max(options.max_body_total, static_cast<int64_t>(4 * options.max_body_bytes));
  options.header_timeout = milliseconds(flags.header_seconds);
  options.body_timeout = milliseconds(flags.body_seconds);
  options.idle_timeout = milliseconds(flags.idle_seconds);
  options.write_timeout = milliseconds(flags.write_seconds);
  options.cors_origins = flags.cors_origins;
  options.allowed_hosts = flags.allowed_hosts;
  return options;
}

}  // namespace lapidary
