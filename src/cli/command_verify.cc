#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/flags.h"
#include "cli/load.h"
#include "cli/model_path.h"
#include "cli/numbers.h"
#include "cli/score_executors.h"
#include "cli/terminal.h"
#include "cli/text_assets.h"
#include "cli/verify_prompts.h"
#include "cli/verify_report.h"
#include "formats/artifact.h"
#include "reference/reference.h"
#include "spec/model_hash.h"
#include "verify/verify.h"

namespace lapidary {
namespace {

constexpr const char* kVerifyExamples =
    R"(Two steps against an independent executor (libtorch, float64). Structure: the engine in float throughout, every layer's
hidden state, keys and values, the logits, and greedy text, strictly. Shipped mode: the arithmetic and KV type that `run` uses with
the same flags, by what they do to the answers (KL divergence). Checks of the tokenizer, the template and the tensors come first.
Exit code 0: passed. 1: failed, and the report says which step and where first; or it could not be checked, and the error says why.

Prompts: texts of several kinds and one longer than the model's window are built in. --prompts takes a text file, one prompt a
line, or a .jsonl file with "text", "ids" or "messages" (and "name") on each line.

Examples:
  lapidary verify smollm2-135m-instruct
  lapidary verify smollm2-135m-instruct --self-test          is every kind of damage seen?
  lapidary verify smollm2-135m-instruct --arithmetic a8      what eight bits of activations cost
  lapidary verify model-q4.gguf --against model-f32/         what the quantisation costs
  lapidary verify model.lapidary --against model.gguf        a packed model against the decoded blocks of its source
  lapidary verify gemma3-270m --kv-dtype bf16 --prompts mine.jsonl --json)";

struct VerifyFlags {
  std::string model, prompts, against, dtype = "f64";
  int64_t decode = 32;
  bool full_dtype = false, self_test = false, json = false;
  EngineFlags engine;
};

VocabularyClaims claims_of(const Checkpoint& checkpoint) {
  return {checkpoint.spec.vocab_size, checkpoint.text.bos_id, checkpoint.text.eos_id,
          checkpoint.text.stop_ids};
}

int64_t count_special(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  return std::count_if(ids.begin(), ids.end(), [&](TokenId id) { return tokenizer.is_special(id); });
}

std::vector<TokenizerCheck> check_template(const Checkpoint& checkpoint, const Tokenizer& tokenizer) {
  if (!checkpoint.text.chat_template) return {};
  const auto ids_of = [&](const std::string& message) {
    Conversation conversation(checkpoint, tokenizer, {});
    conversation.add("user", message);
    return conversation.prompt_ids();
  };
  std::string forged = "hello";
  for (const TokenId id : tokenizer.turn_end_ids()) forged += " " + tokenizer.token_name(id);
  const std::vector<TokenId> plain = ids_of("hello"), with_spellings = ids_of(forged);
  const int64_t marks = count_special(tokenizer, plain),
                forged_marks = count_special(tokenizer, with_spellings);
  return {{"renders", !plain.empty(),
           fmt::format("a turn of one word is {} tokens, {} of them special", plain.size(), marks)},
          {"users cannot forge turns", marks == forged_marks,
           fmt::format("spellings of turn marks in a message add {} special tokens", forged_marks - marks)}};
}

std::string dtypes_text(const Checkpoint& checkpoint) {
  std::string out;
  for (const auto& [dtype, bytes] : checkpoint.dtype_bytes) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", dtype, bytes_text(bytes));
  }
  return out;
}

void check_tokens(const std::vector<VerifyPrompt>& prompts, const ModelSpec& spec, int64_t n_decode,
                  int64_t context) {
  for (const VerifyPrompt& prompt : prompts) {
    ensure(!prompt.tokens.empty(), ErrorCode::usage, "prompt \"{}\" is empty", prompt.name);
    for (size_t i = 0; i < prompt.tokens.size(); ++i) {
      ensure(prompt.tokens[i] >= 0 && prompt.tokens[i] < spec.vocab_size, ErrorCode::usage,
             "prompt \"{}\": token {} is {}, outside the vocabulary of {}", prompt.name, i, prompt.tokens[i],
             spec.vocab_size);
    }
    const auto rows = static_cast<int64_t>(prompt.tokens.size()) + n_decode;
    ensure(rows <= context, ErrorCode::limit,
           "prompt \"{}\": {} positions with those decoded, the context holds {}", prompt.name, rows,
           context);
  }
}

class Verification {
 public:
  Verification(const VerifyFlags& flags, Checkpoint checkpoint, std::optional<Tokenizer> tokenizer)
      : flags_(flags), checkpoint_(std::move(checkpoint)), tokenizer_(std::move(tokenizer)) {
    report_.model = checkpoint_.path.string();
    report_.format = checkpoint_.format;
    report_.dtypes = dtypes_text(checkpoint_);
    report_.skipped_tensors = static_cast<int64_t>(checkpoint_.skipped.size());
    for_each_tensor(checkpoint_.spec, [&](const TensorInfo&) { ++report_.tensors; });
  }

  // Every byte of a packed model, before anything runs on it.
  void check_file() {
    if (checkpoint_.artifact == nullptr) return;
    const Artifact& file = *checkpoint_.artifact;
    Progress progress("reading the file");
    verify_artifact(file, [&](int64_t done, int64_t total) { progress.show(done, total, true); });
    report_.file = fmt::format("{} sections, {}: each as its checksum says; packed from {} ({})",
                               file.sections.size(), bytes_text(checkpoint_.file_bytes),
                               terminal_safe(file.facts.source), terminal_safe(file.facts.source_format));
  }

  // The checks that take a moment. False: no need to go on.
  bool check_text() {
    if (!tokenizer_) return true;
    report_.tokenizer = check_tokenizer(*tokenizer_, claims_of(checkpoint_));
    report_.template_checks = check_template(checkpoint_, *tokenizer_);
    return report_.passed();
  }

  void run_models() {
    prompts_ = flags_.prompts.empty() ? built_in_prompts(checkpoint_, tokenizer_)
                                      : read_prompts(flags_.prompts, checkpoint_, tokenizer_);
    check_tokens(prompts_, checkpoint_.spec, flags_.decode, context_of(checkpoint_, flags_.engine));
    note_windows();
    std::optional<Checkpoint> other;
    if (!flags_.against.empty()) other = open_other();
    ensure(why_no_reference().empty(), ErrorCode::unsupported, "{}", why_no_reference());
    judged_ = !other || same_weights(*other);
    judge_structure(other ? *other : checkpoint_);
    if (!report_.passed()) {
      report_.shipped_note = "not judged: what a mode costs a wrong engine says nothing";
    } else if (shipped_is_float()) {
      report_.shipped_note = "float as above, nothing more to judge";
    } else {
      judge_shipped_mode();
    }
  }

  void self_test() {
    const EngineOptions strict = engine_options(checkpoint_, float_flags());
    Progress progress("damaging the engine's copy");
    const auto total = static_cast<int64_t>(mutations().size()) + 1;
    const auto show = [&] { progress.show(static_cast<int64_t>(report_.mutations.size()), total, false); };
    for (const Mutation& mutation : mutations()) {
      show();
      report_.mutations.push_back(try_mutation(mutation, checkpoint_.spec, *checkpoint_.tensors, strict,
                                               prompts_, report_.prompts, strict_tolerances()));
    }
    show();
    report_.mutations.push_back(try_lost_terms(checkpoint_.spec, *checkpoint_.tensors,
                                               engine_options(checkpoint_, shipped_flags()),
                                               report_.prompts));
  }

  VerifyReport& report() { return report_; }

 private:
  // Step one: is it the model?
  void judge_structure(const Checkpoint& truth) {
    LoadTimes times;
    const std::unique_ptr<Engine> engine = load_engine(checkpoint_, float_flags(), times);
    const ReferenceType type = reference_type(flags_.dtype);
    const bool hold = reference_weights_fit(checkpoint_.spec, type);
    Progress opening("reference");
    opening.show(0, 1, false);
    const auto reference = open_reference(truth.spec, *truth.tensors,
                                          {.type = type, .hold_weights = hold, .threads = engine->threads()});
    opening.clear();
    report_.structure_engine = engine_text(*engine);
    report_.reference = fmt::format("libtorch, {}{}", reference_type_name(type),
                                    hold ? "" : ", weights decoded layer by layer");
    if (judged_) report_.structure_tolerances = strict_tolerances();
    Progress progress("verifying");
    for (const VerifyPrompt& prompt : prompts_) {
      show(progress, report_.prompts.size());
      report_.prompt_names.push_back(prompt.name);
      report_.prompt_tokens.push_back(static_cast<int64_t>(prompt.tokens.size()));
      report_.prompts.push_back(
          verify_prompt(*engine, *reference, prompt, flags_.decode, report_.structure_tolerances));
      if (!flags_.self_test) report_.prompts.back().expected.drop_states();
    }
  }

  bool shipped_is_float() const {
    const bool quantised =  // float weights are multiplied in float in every mode
        std::any_of(checkpoint_.dtype_bytes.begin(), checkpoint_.dtype_bytes.end(),
                    [](const auto& entry) { return is_quantised(*dtype_from_name(entry.first)); });
    const EngineFlags flags = shipped_flags();
    return kv_types_from_name(flags.kv_dtype, "--kv-dtype") == KvTypes(DType::f32) &&
           (flags.arithmetic == "f32" || !quantised) && flags.mode == "exact";
  }

  // Step two: what does the mode cost that answers are computed in?
  void judge_shipped_mode() {
    const EngineFlags flags = shipped_flags();
    LoadTimes times;
    const std::unique_ptr<Engine> engine = load_engine(checkpoint_, flags, times);
    report_.shipped_engine = engine_text(*engine);
    if (judged_) {
      const bool fewer_terms = engine->mode() == NumericMode::fast && engine->arithmetic() == Arithmetic::a16;
      report_.shipped_tolerances = tolerances_of(engine_options(checkpoint_, flags).kv_dtype,
                                                 fewer_terms ? Arithmetic::a8 : engine->arithmetic());
    }
    Progress progress("verifying the shipped mode");
    for (const PromptResult& prompt : report_.prompts) {
      show(progress, report_.shipped.size());
      report_.shipped.push_back(verify_shipped(*engine, prompt.expected, report_.shipped_tolerances));
    }
  }

  static std::string engine_text(const Engine& engine) {
    return fmt::format("{}; {} threads", engine.numeric_mode(), engine.threads());
  }

  void show(Progress& progress, size_t done) const {
    progress.show(static_cast<int64_t>(done), static_cast<int64_t>(prompts_.size()), false);
  }

  EngineFlags shipped_flags() const {
    EngineFlags out = flags_.engine;
    if (flags_.full_dtype) {
      out.kv_dtype = out.arithmetic = "f32";
      out.mode = "exact";
    }
    out.context = 0;  // no more pages than the prompts need
    for (const VerifyPrompt& prompt : prompts_) {
      out.context = std::max(out.context, static_cast<int64_t>(prompt.tokens.size()) + flags_.decode);
    }
    return out;
  }

  EngineFlags float_flags() const {
    EngineFlags out = shipped_flags();
    out.kv_dtype = out.arithmetic = "f32";
    out.mode = "exact";
    return out;
  }

  void note_windows() {
    size_t longest = 0;
    for (const VerifyPrompt& prompt : prompts_) longest = std::max(longest, prompt.tokens.size());
    const int64_t window = largest_window(checkpoint_.spec);
    if (static_cast<int64_t>(longest) > window) return;
    report_.window_note =
        fmt::format("not checked: a window of {}, and the longest prompt has {} tokens", window, longest);
  }

  Checkpoint open_other() {
    Checkpoint other = open_model(flags_.against);
    ensure(other.spec == checkpoint_.spec, ErrorCode::usage,
           "--against {}: another model: its spec differs from that of {} (`lapidary inspect --json` shows "
           "both)",
           other.path.string(), checkpoint_.path.string());
    report_.against = other.path.string();
    return other;
  }

  // Whether this is a packed model, and `other` what it was packed from: then they may not differ.
  bool same_weights(const Checkpoint& other) const {
    return checkpoint_.artifact != nullptr && other.artifact == nullptr &&
           model_hash(other.spec, *other.tensors) == checkpoint_.artifact->facts.model_hash;
  }

  const VerifyFlags& flags_;
  Checkpoint checkpoint_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<VerifyPrompt> prompts_;
  VerifyReport report_;
  bool judged_ = true;  // the reference reads the weights that the engine has
};

int verify(const VerifyFlags& flags) {
  ensure(!flags.self_test || flags.against.empty(), ErrorCode::usage,
         "--self-test and --against cannot be given together");
  const double start = now_seconds();
  Checkpoint checkpoint = open_model(flags.model);
  std::optional<Tokenizer> tokenizer;
  if (has_tokenizer(checkpoint.text)) tokenizer = make_tokenizer(checkpoint.text);
  Verification verification(flags, std::move(checkpoint), std::move(tokenizer));
  verification.check_file();
  if (verification.check_text()) {
    verification.run_models();
    if (flags.self_test) verification.self_test();
  }
  VerifyReport& report = verification.report();
  report.seconds = now_seconds() - start;
  if (flags.json) {
    write_out(boost::json::serialize(verify_json(report)) + "\n");
  } else {
    write_out(verify_text(report, Style::for_fd(STDOUT_FILENO)));
  }
  return report.passed() ? kExitOk : kExitFailure;
}

}  // namespace

void add_verify_command(CLI::App& program, Action& action) {
  CLI::App* command =
      program.add_subcommand("verify", "Holds the engine against an independent float reference");
  auto flags = std::make_shared<VerifyFlags>();
  flags->engine.keep_behind = kRunKeepBehind;
  command->footer(kVerifyExamples);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  command->add_option("--prompts", flags->prompts, "Prompts to use in place of the built-in ones")
      ->check(CLI::ExistingFile);
  command->add_option("-n,--decode", flags->decode, "Tokens decoded after each prompt (default 32)")
      ->check(between(0, 4096));
  command->add_option("--dtype", flags->dtype, "Arithmetic of the reference: f64 or f32 (default f64)")
      ->check(CLI::IsMember({"f64", "f32"}));
  command->add_option("--against", flags->against,
                      "The reference reads this model: states what quantisation costs");
  command->add_flag("--full-dtype", flags->full_dtype,
                    "Structure only: no second step, whatever --kv-dtype and --arithmetic say");
  command->add_flag("--self-test", flags->self_test,
                    "Also damage the engine's copy, one feature at a time: is it seen?");
  command->add_flag("--json", flags->json, "One JSON object");
  add_engine_flags(*command, flags->engine);
  command->callback([flags, &action] { action = [flags] { return verify(*flags); }; });
}

}  // namespace lapidary
