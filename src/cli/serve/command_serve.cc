#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/serve/server.h"

namespace lapidary {
namespace {

constexpr const char* kServeHelp =
    R"(One engine for many clients, in OpenAI's protocol: /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings,
/v1/models, and a page to chat with at /. Every client gets the bits that it would get alone.

Once it answers, one line of JSON goes to standard output: {"event":"ready","url":...,"model":...,"pid":...}. The log goes to
standard error, without prompts, answers and keys. SIGTERM or Ctrl-C: running requests get --drain-seconds, then the exit
code is 0; a second signal ends at once with 130. SIGHUP reads the keys again. docs/serving.md has the whole of it.

Examples:
  lapidary serve smollm2-135m-instruct
  lapidary serve model.gguf --port 9000 --context 8192 --parallel 8
  lapidary serve ~/models/gemma-4-12b --quantise Q4_K_M --kv-bytes 8GiB --kv-dir /var/lib/lapidary/kv
  lapidary serve smollm2-135m-instruct --host 0.0.0.0 --api-keys keys.txt --cors https://chat.example.org

  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"smollm2-135m-instruct","messages":[{"role":"user","content":"Name a colour."}]}')";

}  // namespace

void add_serve_command(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("serve", "Answer many clients at once, in OpenAI's protocol");
  auto flags = std::make_shared<ServeFlags>();
  command->footer(kServeHelp);
  add_serve_flags(*command, *flags);
  command->callback([flags, &action] { action = [flags] { return run_server(*flags, LAPIDARY_VERSION); }; });
}

}  // namespace lapidary
