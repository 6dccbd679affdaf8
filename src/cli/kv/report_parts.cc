#include "cli/kv/report_parts.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/team.h"
#include "cli/bench.h"
#include "cli/inspect.h"
#include "cli/kv/commands.h"
#include "cli/kv/disk_tier.h"
#include "cli/stored_tensors.h"
#include "kvlab/bytes/bytes.h"
#include "kvlab/offload/offload.h"
#include "kvlab/plan/plan.h"
#include "kvlab/recompute/recompute.h"
#include "kvlab/roofline/roofline.h"
#include "kvlab/trace/trace.h"

namespace lapidary {
namespace {

// Short enough for a report on the side: minutes belong to the commands themselves.
const std::vector<int64_t> kUsualRoofline{128, 256, 512, 1024, 2048}, kUsualCurve{8, 32, 128, 512};
constexpr int64_t kMostBytesLength = 4096;  // windows beyond it are left to `kv bytes`
constexpr int64_t kSuffix = 8;              // tokens decoded behind a restored cache
constexpr int kZstdLevel = 3;
constexpr uint64_t kSeed = 1;  // of random tokens

}  // namespace

ReportRun::ReportRun(const ReportFlags& flags)
    : flags_(flags), model_(open_kv_model(flags.model, flags.engine)) {
  const Checkpoint& checkpoint = model_.checkpoint;
  ensure(checkpoint.tensors != nullptr, ErrorCode::usage, "{} holds no weights", checkpoint.path.string());
  prompt_ = prompt_tokens(model_, flags.prompt);
  const int64_t context = context_of(checkpoint, flags.engine);
  const int64_t positions = static_cast<int64_t>(prompt_.size()) + flags.decode_calls;
  ensure(
      positions <= context, ErrorCode::limit,
      "{} tokens of the prompt and {} decode calls: the context holds {} positions; shorten the prompt, or "
      "give a smaller -n",
      prompt_.size(), flags.decode_calls, context);
  if (!flags.no_bytes) {
    bytes_lengths_ = kvlab::default_bytes_lengths(checkpoint.spec, std::min(context, kMostBytesLength));
    bytes_lengths_.push_back(positions);
    std::sort(bytes_lengths_.begin(), bytes_lengths_.end());
    bytes_lengths_.erase(std::unique(bytes_lengths_.begin(), bytes_lengths_.end()), bytes_lengths_.end());
  }
  if (!flags.no_offload) {
    ensure(positions + kSuffix <= context, ErrorCode::limit,
           "--no-offload is needed: {} positions and {} to go on with are more than the context's {}",
           positions, kSuffix, context);
    curve_ = fitting(flags.curve, kUsualCurve, context - kSuffix, "--curve");
  }
  if (!flags.no_roofline && !flags.no_timings)
    roofline_lengths_ = fitting(flags.roofline_lengths, kUsualRoofline, context, "--roofline-lengths");
  hash_ = hash_of_model(checkpoint);
}

std::vector<int64_t> ReportRun::fitting(const std::vector<int64_t>& given, const std::vector<int64_t>& usual,
                                        int64_t most, std::string_view flag) const {
  std::vector<int64_t> lengths = given.empty() ? usual : given;
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  if (given.empty()) {
    std::erase_if(lengths, [&](int64_t length) { return length > most; });
    if (lengths.empty()) lengths = {most};
  }
  ensure(lengths.back() <= most, ErrorCode::usage, "{} {}: expected at most {} positions", flag,
         lengths.back(), most);
  return lengths;
}

int64_t ReportRun::longest() const {
  int64_t most = static_cast<int64_t>(prompt_.size()) + flags_.decode_calls + kSuffix;
  if (!bytes_lengths_.empty()) most = std::max(most, bytes_lengths_.back());
  if (!curve_.empty()) most = std::max(most, curve_.back() + kSuffix);
  return std::min(most, context_of(model_.checkpoint, flags_.engine));
}

Engine& ReportRun::engine() {
  if (!engine_) {
    EngineFlags flags = flags_.engine;
    flags.context = longest();
    flags.sequences = 3;  // what the round trip needs
    LoadTimes times;
    line_.clear();
    engine_ = load_engine(model_.checkpoint, flags, times);
    repro_ = make_repro(model_.checkpoint, engine_.get());
    repro_.model_hash = hash_text(hash_);
  }
  return *engine_;
}

boost::json::object ReportRun::trace(std::vector<kvlab::TimedCall>& timed) {
  kvlab::TraceOptions options;
  options.prompt = prompt_;
  options.decode_calls = flags_.decode_calls;
  options.chunk = flags_.engine.chunk;
  options.words = words_of(model_);
  if (!flags_.ignore_eos) options.stop_ids = stop_ids_of(model_);
  const KvTypes kv = kv_types_from_name(flags_.engine.kv_dtype, "--kv-dtype");
  Engine& running = engine();
  const kvlab::Trace trace = kvlab::run_trace(
      running, kv, options, [&](int32_t id) { return piece_text(model_, id); },
      [&](int64_t done, int64_t total) { line_("tracing", done, total); });
  decode_calls_ = trace.decode_calls();
  if (!flags_.no_timings) {
    std::vector<kvlab::TimedFeed> feeds;
    for (const kvlab::TraceCall& call : trace.calls) {
      kvlab::TimedFeed& feed = feeds.emplace_back();
      for (const kvlab::Token& token : call.fed) feed.tokens.push_back(token.id);
      feed.wants_logits = call.logits.has_value();
    }
    timed = kvlab::time_calls(running, feeds);
  }
  std::vector<int32_t> ids = prompt_;
  for (const kvlab::Token& token : trace.picked()) ids.push_back(token.id);
  return kvlab::trace_json(trace, repro_, flags_.prompt.mode(), text_of(model_, ids));
}

boost::json::object ReportRun::bytes() {
  kvlab::BytesOptions options;
  options.lengths = bytes_lengths_;
  options.types = kv_types_from_name(flags_.engine.kv_dtype, "--kv-dtype");
  options.tokens = prompt_;
  const ModelSpec& spec = model_.checkpoint.spec;
  for (auto i = static_cast<int64_t>(prompt_.size()); i < bytes_lengths_.back(); ++i)
    options.tokens.push_back(bench_token(kSeed, 0, i, spec.vocab_size));
  const kvlab::BytesReport report = kvlab::measure_bytes(
      engine(), options, [&](int64_t done, int64_t total) { line_("filling the cache", done, total); });
  return kvlab::bytes_json(report, spec, repro_);
}

boost::json::object ReportRun::plan() {
  const Checkpoint& checkpoint = model_.checkpoint;
  kvlab::PlanOptions options;
  options.types = kv_types_from_name(flags_.engine.kv_dtype, "--kv-dtype");
  options.lengths = kv_lengths(checkpoint.spec);
  const kvlab::PlanWeights weights = kvlab::file_weights(
      checkpoint.spec, [&](const Slot& slot) { return stored_tensor(checkpoint, slot); }, options.sequences,
      options.ranks);
  return kvlab::plan_json(kvlab::make_plan(checkpoint.spec, weights, options), checkpoint.spec,
                          {checkpoint.family, checkpoint.format}, repro_);
}

boost::json::object ReportRun::offload() {
  const kvlab::OffloadEngine setting{
      engine(), hash_, kv_types_from_name(flags_.engine.kv_dtype, "--kv-dtype"), flags_.engine.keep_behind};
  const TemporaryFolder folder;
  kvlab::RamTier ram;
  DiskTier disk(folder.path() / "state", DiskTier::Keep::no);
  kvlab::ZstdTier zstd(std::make_unique<DiskTier>(folder.path() / "state.zst", DiskTier::Keep::no),
                       kZstdLevel, kvlab::most_state_bytes(setting, kvlab::kRawAttachment.size()));
  kvlab::Tier* const tiers[] = {&ram, &disk, &zstd};
  const kvlab::OffloadPlan plan{prompt_, kSuffix, 3};
  kvlab::OffloadReport report = kvlab::prove_offload(setting, plan, tiers, line_);
  report.mutations = kvlab::run_mutations(setting, plan, kZstdLevel, line_);
  if (!flags_.no_timings) {
    report.curve = kvlab::measure_curve(setting, {curve_, kSuffix, 3, kSeed}, tiers, line_);
    report.break_even = kvlab::break_even(report.curve);
    report.claim = kvlab::claim_facts(report);
  }
  return kvlab::offload_json(report, repro_);
}

boost::json::object ReportRun::recompute() {
  const Checkpoint& checkpoint = model_.checkpoint;
  const int threads = repro_.threads;
  const kvlab::RecomputePlan plan{prompt_, decode_calls_, {1, 7, 0}, {threads}};
  kvlab::check_plan(checkpoint.spec, plan);
  kvlab::RecomputeReport report;
  report.prompt_tokens = static_cast<int64_t>(prompt_.size());
  report.decode_calls = decode_calls_;
  for (int64_t i = 0; i < checkpoint.spec.n_layers(); ++i)
    if (checkpoint.spec.layers[static_cast<size_t>(i)].owns_kv(i)) report.owner_layers.push_back(i);
  report.reference_missing = "kv recompute has it";
  const KvTypes kv = kv_types_from_name(flags_.engine.kv_dtype, "--kv-dtype");
  for (const char* mode : {"exact", "fast"}) {
    EngineFlags flags = flags_.engine;
    flags.mode = mode;
    flags.threads = threads;
    flags.context = report.positions();
    flags.chunk = std::min<int64_t>(report.positions(), 65536);  // a call is one step
    const auto open = [&](int) {
      LoadTimes times;
      line_.clear();
      return load_engine(checkpoint, flags, times);
    };
    std::unique_ptr<Engine> first = open(threads);
    const kvlab::RunFacts facts{mode,      "engine",   first->numeric_mode(), kv.keys,
                                kv.values, DType::f32, flags.mode == "exact"};
    report.runs.push_back(kvlab::recompute(
        checkpoint.spec, plan, facts,
        [&](int n) { return kvlab::engine_subject(first ? std::move(first) : open(n)); },
        [](std::span<const int32_t>, int64_t) -> const kvlab::Record* { return nullptr; }, line_));
  }
  return kvlab::recompute_json(report, repro_, [&](int32_t id) { return piece_text(model_, id); });
}

boost::json::object ReportRun::roofline() {
  const Checkpoint& checkpoint = model_.checkpoint;
  kvlab::RooflinePlan plan;
  std::vector<kvlab::LeftOut> left_out;
  plan.steps = flags_.roofline_steps;
  plan.warm_up = std::min<int64_t>(3, plan.steps);
  plan.part_steps = std::min<int64_t>(5, plan.steps);
  plan.lengths = kvlab::possible_lengths(roofline_lengths_, plan.steps + plan.warm_up,
                                         checkpoint.spec.max_position, left_out);
  if (plan.lengths.empty())  // then some were left out
    fail(ErrorCode::usage, "--roofline-lengths {}: {}", left_out.front().length, left_out.front().why);
  plan.threads = {repro_.threads};
  plan.probe_megabytes = flags_.probe_mb;
  kvlab::RooflineReport report = kvlab::measure_roofline(
      checkpoint.spec, *checkpoint.tensors, engine_options(checkpoint, flags_.engine), plan, line_);
  report.left_out = std::move(left_out);
  kvlab::Repro repro = repro_;
  repro.numeric_mode = report.numeric_mode;
  return kvlab::roofline_json(report, repro);
}

}  // namespace lapidary
