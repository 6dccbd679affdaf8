#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <limits>
#include <memory>

#include "base/error.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/kv/commands.h"
#include "cli/kv/prefix_text.h"
#include "cli/kv/prompt.h"
#include "cli/load.h"
#include "formats/mapped_file.h"
#include "kvlab/prefix/prefix.h"
#include "spec/json_fields.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

namespace json = boost::json;

constexpr const char* kPrefixFooter =
    R"(PROMPTS holds one prompt a line (empty lines are passed over), or JSON lines: {"prompt": "text"} or {"ids": [1, 2, 3]} each.
Each prompt is computed after the longest prefix that one of the kept sequences has in common with it, and is kept in turn;
when all --slots are taken, the sequence that was not used for longest goes. hit: tokens that were not computed. A prompt whose
every kept token could be used is a hit; every other one is a miss, with the one reason that no more was reused:
  cold             no sequence so far began with this token
  evicted          one that held more had to make room: its age and how long it was idle, in prompts
  differs          it parts from what is kept at this token, and nothing so far held more
  window lost      a kept sequence holds more, but a layer with a window cannot go back there (--keep-behind)
  header mismatch  the saved state of --state holds more, but is of another model or mode
The first logits of every prompt are held against a run from nothing, bit for bit. Exit status 1 when they differ.

Examples:
  lapidary kv prefix smollm2-135m-instruct prompts.txt
  lapidary kv prefix gemma3-270m prompts.jsonl --slots 8 --keep-behind 256 --csv
  lapidary kv prefix smollm2-135m-instruct - --chat --json < questions.txt
  lapidary kv prefix smollm2-135m-instruct prompts.txt --state talk.state --no-check)";

struct PrefixFlags {
  std::string model, file, format = "auto", state;
  kvlab::PrefixOptions options;
  bool chat = false, no_check = false, json = false, csv = false;
  EngineFlags engine;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(std::move(line));
    at = end + 1;
  }
  return lines;
}

// An object with "prompt" or "ids": text that looks like it by chance is not to be expected.
bool looks_like_json(const std::string& line) {
  boost::system::error_code problem;
  const json::value value = json::parse(line, problem);
  const json::object* object = problem ? nullptr : value.if_object();
  return object != nullptr && (object->contains("prompt") || object->contains("ids"));
}

bool is_json_lines(const PrefixFlags& flags, const std::vector<std::string>& lines) {
  if (flags.format != "auto") return flags.format == "jsonl";
  if (flags.file.ends_with(".jsonl")) return true;
  const auto first =
      std::find_if(lines.begin(), lines.end(), [](const std::string& l) { return !l.empty(); });
  return first != lines.end() && looks_like_json(*first);
}

std::vector<int32_t> ids_of(JsonFields& fields) {
  std::vector<int32_t> ids;
  for (const json::value& item : fields.get_array("ids")) {
    const auto* id = item.if_int64();
    ensure(id != nullptr && *id >= 0 && *id <= std::numeric_limits<int32_t>::max(), ErrorCode::data,
           "{}[{}] is no token id: {}", fields.path("ids"), ids.size(), json::serialize(item));
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

std::vector<int32_t> tokens_of_line(const KvModel& model, const PrefixFlags& flags, const std::string& line,
                                    const std::string& where, bool json_lines) {
  if (!json_lines) return tokens_of_text(model, line, flags.chat);
  const json::value value = parse_json(line, where);
  JsonFields fields(value, where);
  ensure(fields.has("prompt") != fields.has("ids"), ErrorCode::data,
         "{}: expected an object with either \"prompt\" or \"ids\"", where);
  std::vector<int32_t> ids =
      fields.has("ids") ? ids_of(fields) : tokens_of_text(model, fields.get_string("prompt"), flags.chat);
  fields.refuse_unknown();
  return ids;
}

std::vector<std::vector<int32_t>> read_prompts(const KvModel& model, const PrefixFlags& flags) {
  const std::vector<std::string> lines = lines_of(read_text(flags.file));
  const bool json_lines = is_json_lines(flags, lines);
  const std::string name = flags.file == "-" ? "standard input" : flags.file;
  const int64_t context = context_of(model.checkpoint, flags.engine);
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const std::string where = fmt::format("{}: line {}", name, i + 1);
    prompts.push_back(tokens_of_line(model, flags, lines[i], where, json_lines));
    const std::vector<int32_t>& ids = prompts.back();
    ensure(!ids.empty(), ErrorCode::usage, "{}: the prompt is empty", where);
    ensure(static_cast<int64_t>(ids.size()) <= context, ErrorCode::limit,
           "{}: the prompt has {} tokens, the context holds {}", where, ids.size(), context);
    for (const int32_t id : ids)
      ensure(id < model.checkpoint.spec.vocab_size, ErrorCode::usage,
             "{}: token id {} is outside the vocabulary of {}", where, id, model.checkpoint.spec.vocab_size);
  }
  ensure(!prompts.empty(), ErrorCode::usage, "{}: there are no prompts in it", name);
  return prompts;
}

int prefix(PrefixFlags flags) {
  const KvModel model = open_kv_model(flags.model, flags.engine);
  const std::vector<std::vector<int32_t>> prompts = read_prompts(model, flags);
  std::optional<MappedFile> file;
  std::optional<kvlab::PrefixState> state;
  if (!flags.state.empty()) {
    file.emplace(flags.state);
    state = kvlab::PrefixState{utf8_lossy(file->name()), file->bytes(), hash_of_model(model.checkpoint)};
  }
  flags.options.check = !flags.no_check;
  flags.options.keep_behind = flags.engine.keep_behind;
  flags.options.words = words_of(model);
  flags.engine.sequences = kvlab::prefix_sequences(flags.options);
  if (flags.engine.context == 0 && !state) {  // no more address space than the prompts need
    for (const std::vector<int32_t>& ids : prompts)
      flags.engine.context = std::max(flags.engine.context, static_cast<int64_t>(ids.size()));
  }
  LoadTimes times;
  const std::unique_ptr<Engine> engine = load_engine(model.checkpoint, flags.engine, times);
  Progress progress("replaying");
  const kvlab::PrefixReport report = kvlab::run_prefix(
      *engine, kv_types_from_name(flags.engine.kv_dtype, "--kv-dtype"), prompts, state, flags.options,
      [&](int32_t id) { return piece_text(model, id); },
      [&](int64_t done, int64_t total) { progress.show(done, total, false); });
  progress.clear();
  if (flags.json) {
    write_out(json::serialize(prefix_json(report, make_repro(model.checkpoint, engine.get()))) + "\n");
  } else if (flags.csv) {
    write_out(prefix_csv(report));
  } else {
    write_out(prefix_text(report, utf8_lossy(model.checkpoint.path.filename().string()),
                          Style::for_fd(STDOUT_FILENO)));
  }
  return report.passed() ? kExitOk : kExitFailure;
}

}  // namespace

void add_kv_prefix_command(CLI::App& kv, Action& action) {
  CLI::App* command =
      kv.add_subcommand("prefix", "What a file of prompts reuses of each other, and why not more");
  auto flags = std::make_shared<PrefixFlags>();
  command->footer(kPrefixFooter);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  command->add_option("PROMPTS", flags->file, "File of prompts; - reads standard input")->required();
  command
      ->add_option("--format", flags->format,
                   "Of PROMPTS: lines, jsonl, or auto: by its name (.jsonl) or its first line (default auto)")
      ->check(CLI::IsMember({"auto", "lines", "jsonl"}));
  command->add_flag("--chat", flags->chat,
                    "Put each text into the model's chat template, as its user's message");
  command->add_option("--slots", flags->options.slots, "Sequences that are kept (default 4)")
      ->check(between(1, 65000));
  command
      ->add_option("--keep-behind", flags->engine.keep_behind,
                   "Positions kept behind each window, to go back to (default 0)")
      ->check(at_least(0));
  command
      ->add_option("--state", flags->state,
                   "A state that run --save-state wrote: the first sequence, if it goes with the model")
      ->check(not_empty());
  command->add_flag("--no-check", flags->no_check, "Don't run each prompt once more from nothing");
  CLI::Option* as_json = command->add_flag("--json", flags->json, "One JSON object with everything");
  command->add_flag("--csv", flags->csv, "One line of CSV for each prompt")->excludes(as_json);
  add_exact_engine_flags(*command, flags->engine);
  command->callback([flags, &action] { action = [flags] { return prefix(*flags); }; });
}

}  // namespace lapidary
