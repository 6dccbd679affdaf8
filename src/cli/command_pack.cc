#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>

#include "base/error.h"
#include "base/quote.h"
#include "base/team.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/load.h"
#include "cli/numbers.h"
#include "cli/stats.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text_assets.h"
#include "engine/pack.h"
#include "formats/artifact_writer.h"
#include "formats/convert.h"
#include "formats/quantised_tensors.h"
#include "spec/model_hash.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

constexpr const char* kPackExamples =
    R"(OUT holds all that a run needs: spec, tokenizer, chat template, and the weights as the engine multiplies by them, each part with
its checksum. Opening it maps the file; nothing is packed, so the first token comes at once. Its name ends in .lapidary, and it
stands wherever MODEL does but in convert and pack. Another version of this program may pack otherwise: it then refuses the file
and says so, and the model has to be packed again. Nothing is seen under OUT until all is written.

Examples:
  lapidary pack smollm2-135m-instruct smollm2.lapidary
  lapidary verify smollm2.lapidary                           checksums, then the engine against the reference
  lapidary run smollm2.lapidary "Why is the sky blue?"
  lapidary pack ~/models/gemma-4-E2B gemma-4-E2B.lapidary --force --json
  lapidary pack ~/models/gemma-4-12b gemma-4-12b.lapidary --quantise Q4_K_M    floats in, 4 bits out)";

struct PackFlags {
  std::string model, out, quantise;
  int threads = 0;
  bool force = false, json = false;
};

struct Interrupted {};

struct PackReport {
  std::string source, target;
  int64_t source_bytes = 0, bytes = 0;
  size_t packed = 0, plain = 0, texts = 0;  // sections
  int64_t packed_bytes = 0, plain_bytes = 0, text_bytes = 0;
  double seconds = 0;
};

std::filesystem::path checked_name(const PackFlags& flags) {
  const std::filesystem::path out(flags.out);
  ensure(out.extension() == kArtifactExtension, ErrorCode::usage,
         "OUT: expected a name that ends in {}, got {}", kArtifactExtension, lapidary::quoted(flags.out));
  return checked_target(out, ModelFormat::gguf, flags.force);
}

void count_sections(const Artifact& artifact, PackReport& report) {
  for (const ArtifactSection& section : artifact.sections) {
    const bool packed = section.kind == SectionKind::packed, plain = section.kind == SectionKind::plain;
    (packed ? report.packed : plain ? report.plain : report.texts)++;
    (packed ? report.packed_bytes : plain ? report.plain_bytes : report.text_bytes) += section.length;
  }
}

// Found once here, not at every start.
std::vector<MergeIds> source_merges(const TextAssets& text) {
  if (text.gguf == nullptr || !has_gguf_vocabulary(*text.gguf)) return {};
  return merge_ids(gguf_vocabulary(*text.gguf));
}

PackReport write_artifact(const Checkpoint& source, const std::filesystem::path& target, int threads) {
  PackReport report;
  report.source = source.path.string();
  report.target = target.string();
  report.source_bytes = source.file_bytes;
  Progress progress("packing");
  const InterruptScope interrupts(true);
  const auto show = [&](int64_t done, int64_t total) {
    if (InterruptScope::requested()) throw Interrupted{};
    progress.show(done, total, true);
  };
  const std::vector<MergeIds> merges = source_merges(source.text);
  ArtifactWriter writer(target, source, model_hash(source.spec, *source.tensors),
                        std::as_bytes(std::span(merges)));
  Team team(threads);
  pack_model(source.spec, *source.tensors, team, writer, show);
  report.bytes = writer.commit();
  count_sections(writer.written(), report);
  return report;
}

std::string report_text(const PackReport& report, const Style& style) {
  TextTable table({{"packed", Align::left}, {"", Align::right}, {"", Align::left}});
  const auto row = [&](const char* what, size_t count, int64_t bytes, const char* how) {
    table.add({what, grouped(static_cast<int64_t>(count)), fmt::format("{}, {}", bytes_text(bytes), how)});
  };
  row("weights", report.packed, report.packed_bytes, "as the engine multiplies by them");
  row("tables and vectors", report.plain, report.plain_bytes, "as they were");
  row("texts", report.texts, report.text_bytes, "spec, tokenizer, template");
  return fmt::format("{} -> {}\n{}  {} from {}; {}; at most {} resident\n", terminal_safe(report.source),
                     style.bold(terminal_safe(report.target)), table.text(style), bytes_text(report.bytes),
                     bytes_text(report.source_bytes), seconds_text(report.seconds),
                     bytes_text(peak_rss_bytes()));
}

boost::json::object report_json(const PackReport& report) {
  const auto part = [](size_t sections, int64_t bytes) {
    return boost::json::object{{"sections", sections}, {"bytes", bytes}};
  };
  return {{"source", utf8_lossy(report.source)},
          {"target", utf8_lossy(report.target)},
          {"source_bytes", report.source_bytes},
          {"bytes", report.bytes},
          {"packed", part(report.packed, report.packed_bytes)},
          {"plain", part(report.plain, report.plain_bytes)},
          {"text", part(report.texts, report.text_bytes)},
          {"peak_rss_bytes", peak_rss_bytes()},
          {"seconds", report.seconds}};
}

int run_pack(const PackFlags& flags) {
  const double start = now_seconds();
  const std::filesystem::path target = checked_name(flags);
  Checkpoint source = open_model(flags.model);
  refuse_packed(source, "pack");
  const int threads = flags.threads != 0 ? flags.threads : usable_cores();
  if (!flags.quantise.empty()) quantise_weights(source, flags.quantise, threads);
  PackReport report = write_artifact(source, target, threads);
  report.seconds = now_seconds() - start;
  write_out(flags.json ? boost::json::serialize(report_json(report)) + "\n"
                       : report_text(report, Style::for_fd(STDOUT_FILENO)));
  return kExitOk;
}

}  // namespace

void add_pack_command(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("pack", "Write a model as one file that starts at once");
  auto flags = std::make_shared<PackFlags>();
  command->footer(kPackExamples);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF file or name in the cache")->required();
  command->add_option("OUT", flags->out, "File to write: NAME.lapidary")->required();
  command
      ->add_option("--threads", flags->threads, "Threads (default: physical cores that this process may use)")
      ->check(between(1, 1024));
  add_quantise_flag(*command, flags->quantise);
  command->add_flag("--force", flags->force, "Replace OUT when it is there");
  command->add_flag("--json", flags->json, "One JSON object");
  command->callback([flags, &action] {
    action = [flags] {
      try {
        return run_pack(*flags);
      } catch (const Interrupted&) {
        write_err("lapidary: interrupted; nothing was written\n");
        return kExitInterrupted;
      }
    };
  });
}

}  // namespace lapidary
