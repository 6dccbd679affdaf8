#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/inspect.h"
#include "cli/load.h"
#include "cli/terminal.h"

namespace lapidary {
namespace {

constexpr const char* kInspectExamples =
    R"(Reads headers and metadata only, so any size takes less than a second. A config.json alone will do.
Pattern: S sliding, F full (global) attention, lower case where a layer reads another's KV.

Examples:
  lapidary inspect smollm2-135m-instruct
  lapidary inspect gemma-4-E2B/config.json --layers
  lapidary inspect model.gguf --kv-dtype f32 --json)";

}  // namespace

void add_inspect_command(CLI::App& program, Action& action) {
  struct Flags {
    std::string model;
    InspectOptions options;
    bool json = false;
  };
  CLI::App* command = program.add_subcommand("inspect", "Show a model's layers, parameters and KV bytes");
  auto flags = std::make_shared<Flags>();
  command->footer(kInspectExamples);
  command
      ->add_option("MODEL", flags->model,
                   "Model: folder, GGUF or packed file, config.json or name in the cache")
      ->required();
  command->add_flag("--layers", flags->options.every_layer, "One line for every layer");
  command
      ->add_option("--kv-dtype", flags->options.kv_dtype,
                   "Count KV bytes in f32, f16, bf16 or q8, or apart as in k=q8,v=f16 (default f16)")
      ->check(kv_types());
  command->add_flag("--json", flags->json, "One JSON object");
  command->callback([flags, &action] {
    action = [flags] {
      const Checkpoint checkpoint = open_model(flags->model, true);
      if (flags->json) {
        write_out(boost::json::serialize(inspect_json(checkpoint, flags->options)) + "\n");
      } else {
        write_out(inspect_text(checkpoint, flags->options, Style::for_fd(STDOUT_FILENO)));
      }
      return kExitOk;
    };
  });
}

}  // namespace lapidary
