#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cctype>
#include <charconv>
#include <memory>

#include "base/error.h"
#include "base/quote.h"
#include "base/team.h"
#include "cli/commands.h"
#include "cli/convert_report.h"
#include "cli/convert_text.h"
#include "cli/flags.h"
#include "cli/load.h"
#include "cli/model_path.h"
#include "base/suggest.h"
#include "cli/terminal.h"
#include "formats/atomic_file.h"

namespace lapidary {
namespace {

constexpr const char* kConvertExamples =
    R"(OUT is a GGUF file when its name ends in .gguf, else a Hugging Face folder. Without --type every tensor keeps its number format
as far as OUT has it. Nothing is seen under OUT until all is written; what a killed run leaves beside it, the next run removes.
--force replaces a file, whatever it holds, by a GGUF file, and a folder by a folder: all that was in the folder is deleted. It never
replaces a folder by a file or a file by a folder, nor a folder without config.json or with anything that no conversion writes.

Types: F32, F16, BF16, and for GGUF Q8_0, Q6_K, Q5_K_M, Q4_K_M, Q4_K_S, Q4_0, with llama.cpp's choice of tensors.

Examples:
  lapidary convert ~/models/gemma-4-E2B gemma-4-E2B-Q4_K_M.gguf --type Q4_K_M
  lapidary convert ~/models/gemma-4-E2B out.gguf --type Q8_0 --dry-run
  lapidary convert smollm2-135m-instruct smollm2-hf --type BF16 --shard-size 100MB
  lapidary convert model.gguf smaller.gguf --type Q4_0 --allow-requantize --json)";

struct ConvertFlags {
  std::string model, out, type, format, shard_size;
  int threads = 0;
  bool allow_requantize = false, force = false, json = false, dry_run = false;
};

struct Interrupted {};

const Mix* mix_of(const std::string& name) {
  if (name.empty()) return nullptr;
  if (const Mix* mix = find_mix(name)) return mix;
  const std::vector<std::string> known = mix_names();
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const auto guess = nearest(upper, known);
  fail(ErrorCode::usage, "--type: expected one of {}, got {}{}", fmt::format("{}", fmt::join(known, ", ")),
       lapidary::quoted(name), guess ? fmt::format("; did you mean {}?", *guess) : "");
}

ModelFormat format_of(const ConvertFlags& flags) {
  if (!flags.format.empty()) return flags.format == "gguf" ? ModelFormat::gguf : ModelFormat::hf;
  return std::filesystem::path(flags.out).extension() == ".gguf" ? ModelFormat::gguf : ModelFormat::hf;
}

// "500MB", "5GB", "1000000"; decimal units, as those of files are.
int64_t size_of(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const int64_t factor = unit.empty() || unit == "B"    ? 1
                         : unit == "kB" || unit == "KB" ? 1000
                         : unit == "MB"                 ? 1000000
                         : unit == "GB"                 ? 1000000000
                                                        : 0;
  ensure(error == std::errc() && number > 0 && factor > 0 && number <= INT64_MAX / factor, ErrorCode::usage,
         "--shard-size: expected a size such as 500MB or 5GB, got {}", lapidary::quoted(text));
  return number * factor;
}

// What --force, or the lack of it, would come to. A dry run tells; any other refuses before it begins.
std::optional<std::string> target_note(const ConvertFlags& flags, ModelFormat format) {
  std::filesystem::path target;
  try {
    target = checked_target(flags.out, format, flags.force);
  } catch (const Error& error) {
    if (!flags.dry_run) throw;
    return fmt::format("without --dry-run this would be refused: {}", error.what());
  }
  const auto there = type_at(target);
  if (there == std::filesystem::file_type::not_found) return {};
  return there == std::filesystem::file_type::regular
             ? fmt::format("{} is replaced", target.string())
             : fmt::format("{} is replaced, with all that it holds", target.string());
}

ConvertOutcome write_model(const Checkpoint& source, const ConvertPlan& plan, TextConversion text,
                           const ConvertFlags& flags, int64_t shard_bytes, int threads) {
  Progress progress("converting");
  const InterruptScope interrupts(true);
  const auto show = [&](int64_t done, int64_t total) {
    if (InterruptScope::requested()) throw Interrupted{};
    progress.show(done, total, true);
  };
  const ConvertTarget target{flags.out, flags.force, shard_bytes, threads, show};
  return plan.format == ModelFormat::gguf ? write_gguf_model(source, plan, std::move(text.text), target)
                                          : write_hf_model(source, plan, text.text, target);
}

int run_convert(const ConvertFlags& flags) {
  const double start = now_seconds();
  const ConvertOptions options{format_of(flags), mix_of(flags.type), flags.allow_requantize};
  ensure(flags.shard_size.empty() || options.format == ModelFormat::hf, ErrorCode::usage,
         "--shard-size is for model folders; a GGUF file is one file");
  const int64_t shard_bytes = flags.shard_size.empty() ? 0 : size_of(flags.shard_size);
  const std::optional<std::string> replaced = target_note(flags, options.format);
  const Checkpoint source = open_model(flags.model);
  refuse_packed(source, "convert");
  const ConvertPlan plan = plan_conversion(source, options);
  TextConversion text = convert_text(source, options.format);
  ConvertReport report;
  report.source = &source;
  report.plan = &plan;
  report.target = flags.out;
  report.notes = text.notes;
  if (replaced) report.notes.push_back(*replaced);
  report.threads = flags.threads != 0 ? flags.threads : usable_cores();
  for (std::string& note : target_notes(source, plan)) report.notes.push_back(std::move(note));
  if (!flags.dry_run) {
    report.outcome = write_model(source, plan, std::move(text), flags, shard_bytes, report.threads);
    report.written = true;
  }
  report.seconds = now_seconds() - start;
  if (flags.json) {
    write_out(boost::json::serialize(convert_report_json(report)) + "\n");
    return kExitOk;
  }
  const Style style = Style::for_fd(STDOUT_FILENO);
  if (flags.dry_run) write_out(plan_table(plan, style) + "\n");
  write_out(convert_report_text(report, style));
  return kExitOk;
}

}  // namespace

void add_convert_command(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("convert", "Write a model in another format or number format");
  auto flags = std::make_shared<ConvertFlags>();
  command->footer(kConvertExamples);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF file or name in the cache")->required();
  command->add_option("OUT", flags->out, "GGUF file or folder to write")->required();
  command->add_option("--type", flags->type, "Number format of the weights (default: as they are)")
      ->check(not_empty());
  command->add_option("--format", flags->format, "gguf or hf (default: from the name of OUT)")
      ->check(CLI::IsMember({"gguf", "hf"}));
  command
      ->add_option("--shard-size", flags->shard_size,
                   "Largest weight file of a folder, such as 5GB (default: one file)")
      ->check(not_empty());
  command
      ->add_option("--threads", flags->threads, "Threads (default: physical cores that this process may use)")
      ->check(between(1, 1024));
  command->add_flag("--allow-requantize", flags->allow_requantize, "Quantise what is quantised already");
  command->add_flag("--force", flags->force,
                    "Replace OUT: a file by a file, or a folder and all that it holds by a folder");
  command->add_flag("--dry-run", flags->dry_run, "Show every tensor and its type; write nothing");
  command->add_flag("--json", flags->json, "One JSON object");
  command->callback([flags, &action] {
    action = [flags] {
      try {
        return run_convert(*flags);
      } catch (const Interrupted&) {
        write_err("lapidary: interrupted; nothing was written\n");
        return kExitInterrupted;
      }
    };
  });
}

}  // namespace lapidary
