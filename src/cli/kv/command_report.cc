#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "cli/flags.h"
#include "cli/kv/commands.h"
#include "cli/kv/report_parts.h"
#include "cli/kv/report_text.h"
#include "formats/atomic_file.h"
#include "kvlab/report/perfetto.h"
#include "kvlab/report/report.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReportFooter =
    R"(One run of a prompt, and what the other commands of the lab find on it, as files that need nothing else:
report.html            one page, opened from the disk: call slider, map of layers and positions, growth, roofline,
                       differences, gaps of the logits, plan. It asks no server for anything
report.json            all of it; the other files say nothing that is not in it
report.csv             one line for each forward call
report.md              for an issue or a pull request
trace.perfetto.json    for ui.perfetto.dev or chrome://tracing; operations as a run of their own, watched by a clock, timed them
They appear together or not at all. -o NAME.html writes the page alone. Parts can be left out: the page says which.
--no-timings leaves out all that is measured in seconds, so that two runs make the same bytes. An existing folder is
replaced with --force, if it holds a report and nothing else. Exit code 1 when a check of any part fails; the files are written.

Examples:
  lapidary kv report smollm2-135m-instruct "The capital of France is" -o france
  lapidary kv report gemma3-270m "Once upon a time" -n 40 -o story.html --no-roofline
  lapidary kv report smollm2-135m-instruct "Why?" --chat -o why --no-timings --force
  lapidary kv report gemma-tiny --ids 2,10,11,12 --json > report.json)";

struct ReportFile {
  const char* name;
  std::string text;
};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

constexpr std::array kFileNames{"report.html", "report.json", "report.csv", "report.md",
                                "trace.perfetto.json"};

// --force is for reports, not for whatever has the name.
void check_replaceable(const fs::path& folder) {
  std::error_code problem;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    const std::string name = entry->path().filename().string();
    ensure(std::find(kFileNames.begin(), kFileNames.end(), name) != kFileNames.end(), ErrorCode::usage,
           "{}: --force replaces a folder that holds a report and nothing else, and this one holds {}",
           folder.string(), name);
  }
}

// Where the files go. Made before anything is computed, so that what cannot be written is known at once.
class Target {
 public:
  Target(const std::string& out, bool force) : path_(out) {
    if (out.empty()) return;
    if (path_.extension() == ".html") {
      ensure(force || type_at(path_) == fs::file_type::not_found, ErrorCode::usage,
             "{} is there already; --force replaces it", out);
      page_.emplace(path_);
      return;
    }
    ensure(force || type_at(path_) != fs::file_type::directory || fs::is_empty(path_), ErrorCode::usage,
           "{} is there already and holds files; --force replaces a report", out);
    if (force && type_at(path_) == fs::file_type::directory) check_replaceable(path_);
    folder_.emplace(path_, force ? AtomicFolder::Existing::replace : AtomicFolder::Existing::refuse);
  }

  bool page_alone() const { return page_.has_value(); }

  // Lines of what was written.
  std::string write(const std::vector<ReportFile>& files) {
    std::string lines;
    for (const ReportFile& file : files) {
      if (page_) {
        page_->write(bytes_of(file.text));
        lines += written_line(path_.string(), file.text.size());
      } else {
        AtomicFile one(folder_->temporary() / file.name);
        one.write(bytes_of(file.text));
        one.commit();
        lines += written_line((path_ / file.name).string(), file.text.size());
      }
    }
    page_ ? page_->commit() : folder_->commit();
    return lines;
  }

 private:
  fs::path path_;
  std::optional<AtomicFile> page_;
  std::optional<AtomicFolder> folder_;
};

int report(const ReportFlags& flags) {
  ensure(!flags.out.empty() || flags.json, ErrorCode::usage,
         "-o says where the report goes: a folder, or a file whose name ends in .html (or --json for the "
         "data alone)");
  ReportRun run(flags);
  Target target(flags.out, flags.force);

  kvlab::ReportParts parts;
  std::vector<kvlab::TimedCall> timed;
  parts.trace = run.trace(timed);
  if (!flags.no_bytes) parts.bytes = run.bytes();
  if (!flags.no_plan) parts.plan = run.plan();
  if (!flags.no_offload) parts.offload = run.offload();
  run.drop_engine();
  if (!flags.no_recompute) parts.recompute = run.recompute();
  if (!flags.no_roofline && !flags.no_timings) parts.roofline = run.roofline();
  const boost::json::object data = kvlab::report_json(std::move(parts), run.repro(), !flags.no_timings);
  run.finish();

  std::string written;
  if (!flags.out.empty()) {
    std::vector<ReportFile> files{{"report.html", kvlab::report_html(data)}};
    if (!target.page_alone()) {
      files.push_back({"report.json", boost::json::serialize(data) + "\n"});
      files.push_back({"report.csv", kvlab::report_csv(data)});
      files.push_back({"report.md", kvlab::report_markdown(data)});
      files.push_back(
          {"trace.perfetto.json", boost::json::serialize(kvlab::perfetto_trace(data, timed)) + "\n"});
    }
    written = target.write(files);
  }
  write_out(flags.json ? boost::json::serialize(data) + "\n"
                       : report_text(data, Style::for_fd(STDOUT_FILENO)) + written);
  for (const kvlab::ReportCheck& check : kvlab::report_checks(data))
    if (!check.passed) return kExitFailure;
  return kExitOk;
}

}  // namespace

void add_kv_report_command(CLI::App& kv, Action& action) {
  constexpr int64_t kMostTokens = int64_t{1} << 24;
  CLI::App* command = kv.add_subcommand("report", "All of it on one prompt, as a page and as files");
  auto flags = std::make_shared<ReportFlags>();
  command->footer(kReportFooter);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  add_kv_prompt_flags(*command, flags->prompt);
  command
      ->add_option("-n,--decode-calls", flags->decode_calls,
                   "Decode calls after the prefill; they pick one token more than that (default 10)")
      ->check(between(0, 1 << 20));
  command->add_flag("--ignore-eos", flags->ignore_eos, "Go on past the model's stop tokens");
  command->add_option("-o,--out", flags->out, "Folder for the files, or NAME.html for the page alone")
      ->check(not_empty());
  command->add_flag("--force", flags->force, "Replace a report that is there");
  command->add_flag("--json", flags->json, "Print the data; -o may be left out then");
  const auto parts = "Parts";
  command->add_flag("--no-bytes", flags->no_bytes, "Leave out needed, allocated and touched bytes")
      ->group(parts);
  command->add_flag("--no-plan", flags->no_plan, "Leave out other lengths and formulas")->group(parts);
  command->add_flag("--no-recompute", flags->no_recompute, "Leave out the same positions computed again")
      ->group(parts);
  command->add_flag("--no-offload", flags->no_offload, "Leave out saving, poisoning and restoring")
      ->group(parts);
  CLI::Option* no_roofline =
      command->add_flag("--no-roofline", flags->no_roofline, "Leave out time over bytes")->group(parts);
  CLI::Option* no_timings =
      command->add_flag("--no-timings", flags->no_timings, "Leave out all that a clock had a part in")
          ->group(parts);
  CLI::Option* lengths =
      command
          ->add_option("--roofline-lengths", flags->roofline_lengths,
                       "Context lengths to time, separated by commas (default 128 to 2048, doubled each "
                       "time, as far as they fit)")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->check(between(1, kMostTokens))
          ->group(parts);
  CLI::Option* steps = command
                           ->add_option("--roofline-steps", flags->roofline_steps,
                                        "Timed decode steps of each length (default 20)")
                           ->check(between(1, 100000))
                           ->group(parts);
  CLI::Option* probe = command
                           ->add_option("--probe-mb", flags->probe_mb,
                                        "MiB for measuring the memory (default: four times the last cache)")
                           ->check(between(1, int64_t{1} << 20))
                           ->group(parts);
  CLI::Option* curve = command
                           ->add_option("--curve", flags->curve,
                                        "Lengths at which computing and loading are timed, separated by "
                                        "commas (default 8,32,128,512, as far as they fit)")
                           ->delimiter(',')
                           ->allow_extra_args(false)
                           ->check(between(1, kMostTokens))
                           ->group(parts);
  for (CLI::Option* timed : {lengths, steps, probe}) timed->excludes(no_roofline)->excludes(no_timings);
  curve->excludes(no_timings);
  add_exact_engine_flags(*command, flags->engine);  // what fast does is a part of its own
  command->callback([flags, &action] { action = [flags] { return report(*flags); }; });
}

}  // namespace lapidary
