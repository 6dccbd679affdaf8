// Flags of `lapidary serve`: those of its own, and those of the engine.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/load.h"
#include "serve/api/service.h"
#include "serve/http/http_server.h"

namespace lapidary {

struct ServeFlags {
  std::string model;
  std::string name;  // what clients call the model; empty: after its file or its name in the cache
  std::string host = "127.0.0.1";
  int64_t port = 8080;
  std::string keys_file;  // empty: no keys are needed
  std::vector<std::string> cors_origins, allowed_hosts;

  int64_t parallel = 16, queue = 256;
  std::string kv_bytes;  // empty: planned (memory_plan.h)
  bool no_prefix_cache = false;
  int64_t cache_entries = 64;
  std::string kv_folder;  // empty: the cache ends with the server
  double step_milliseconds = 100;

  int64_t default_max_tokens = 1024, max_tokens = 0;
  double timeout_seconds = 600;
  int64_t max_texts = 16, max_stops = 16;
  std::string max_schema_bytes = "256KiB";
  bool loop_guard = false, reserved_guard = false;
  std::string template_file;  // empty: the model's own

  std::string max_body = "16MiB";
  int64_t max_connections = 512;
  double header_seconds = 10, body_seconds = 60, idle_seconds = 120, write_seconds = 60;

  double drain_seconds = 30;
  std::string log_format = "auto";
  EngineFlags engine;
};
void add_serve_flags(CLI::App& command, ServeFlags& flags);

// Error(usage) naming the flag.
serve::ApiLimits api_limits(const ServeFlags& flags);
// What the flags say of HTTP; keys and error bodies are the caller's.
serve::HttpOptions http_options(const ServeFlags& flags);

}  // namespace lapidary
