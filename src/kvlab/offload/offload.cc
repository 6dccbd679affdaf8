#include "kvlab/offload/offload.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/kv_layout.h"
#include "kvlab/sequence.h"
#include "spec/footprint.h"

namespace lapidary::kvlab {

using kernels::kBlock;

namespace {

int64_t first_held(const AttentionSpec& a, int64_t length, int64_t keep_behind) {
  if (a.window == 0) return 0;
  return std::max<int64_t>(0, length - a.window + 1 - keep_behind) / kBlock * kBlock;
}

int64_t position_bytes_of(const AttentionSpec& a, const KvTypes& types) {
  return a.n_kv_heads *
         static_cast<int64_t>(kv_row_bytes(types.keys, a.head_dim) + kv_row_bytes(types.values, a.head_dim));
}

Hash128 hash_over(const std::vector<PageHash>& pages, Hash128 PageHash::*part) {
  Hasher hasher;
  for (const PageHash& page : pages) hasher.add(page.*part);
  return hasher.digest();
}

int32_t greedy(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<float> fed(Engine& engine, int32_t sequence, std::span<const int32_t> tokens) {
  std::vector<float> logits;
  const Feed feed{sequence, tokens, Want::last};
  engine.forward({&feed, 1},
                 [&](size_t, int64_t, std::span<const float> row) { logits.assign(row.begin(), row.end()); });
  return logits;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Greedy decode from a first token on: every logit row, and which token each of them picks.
struct Continuation {
  std::vector<float> next;  // logits after the first token
  std::vector<Hash128> rows;
  std::vector<int32_t> tokens;
  std::vector<double> seconds;
};

Continuation go_on(Engine& engine, int32_t sequence, int32_t first, int64_t steps) {
  Continuation out;
  for (int64_t i = 0; i < steps; i++) {
    out.tokens.push_back(i == 0 ? first : out.tokens.back());
    const double start = lab_seconds();
    const std::vector<float> logits = fed(engine, sequence, {&out.tokens.back(), 1});
    out.seconds.push_back(lab_seconds() - start);
    if (i == 0) out.next = logits;
    out.rows.push_back(hash128(std::as_bytes(std::span(logits))));
    out.tokens.back() = greedy(logits);
  }
  return out;
}

std::string count_text(size_t equal, size_t all, const char* what) {
  return fmt::format("{} of {} {}", equal, all, what);
}

size_t equal_pages(const std::vector<PageHash>& a, const std::vector<PageHash>& b) {
  size_t equal = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); i++) equal += a[i] == b[i] ? 1 : 0;
  return equal;
}

OffloadCheck pages_check(std::string name, std::string way, const std::vector<PageHash>& expected,
                         const std::vector<PageHash>& got) {
  const size_t equal = equal_pages(expected, got);
  OffloadCheck check{std::move(name), std::move(way),
                     got.size() == expected.size() && equal == expected.size(),
                     count_text(equal, expected.size(), "pages, keys and values each")};
  for (size_t i = 0; i < std::min(expected.size(), got.size()) && !check.passed; i++)
    if (!(expected[i] == got[i])) {
      check.detail += fmt::format("; the first that differs: layer {}, positions {} to {}", got[i].layer,
                                  got[i].first, got[i].first + got[i].positions - 1);
      break;
    }
  return check;
}

class Proof {
 public:
  Proof(const OffloadEngine& setting, const OffloadPlan& plan, OnLabWork on_work)
      : s_(setting), engine_(setting.engine), plan_(plan), on_work_(on_work) {}

  OffloadReport run(std::span<Tier* const> tiers) {
    report_.prompt_tokens = static_cast<int64_t>(plan_.prompt.size());
    report_.suffix_tokens = plan_.suffix;
    report_.repeats = plan_.repeats;
    uninterrupted();
    const OpenSequence target(engine_);
    poison_ = poisoned(state_);
    poison_hashes_ = page_hashes(poison_, parts_of(poison_));
    for (Tier* tier : tiers) through(*tier, target.id());
    decode_both_ways(target.id());
    go_back(target.id());
    poisoned_pages_are_harmless(target.id());
    return std::move(report_);
  }

 private:
  void check(std::string name, std::string way, bool passed, std::string detail) {
    report_.checks.push_back({std::move(name), std::move(way), passed, std::move(detail)});
  }

  void restore(int32_t target, std::span<const std::byte> bytes, std::string_view name) {
    engine_.restore(target, bytes, s_.model, name, [](std::span<const std::byte>) {});
  }

  // The run that everything else is held to; saved between prompt and suffix.
  void uninterrupted() {
    on_work_("the uninterrupted run", 0, 1);
    const OpenSequence own(engine_);
    first_ = greedy(fed(engine_, own.id(), plan_.prompt));
    hashes_ = page_hashes(engine_, own.id(), s_.types);
    std::vector<double> seconds;
    for (int64_t i = 0; i < plan_.repeats; i++) {
      Bytes bytes;
      bytes.reserve(state_.size());
      const double start = lab_seconds();
      engine_.save(
          own.id(), s_.model, std::as_bytes(std::span(kRawAttachment)),
          [&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
      seconds.push_back(lab_seconds() - start);
      state_ = std::move(bytes);
    }
    pack_ = median_of(seconds);
    report_.state = state_facts(state_, engine_.spec(), s_.keep_behind);
    report_.replay = replay_facts(engine_.spec(), s_.types, report_.state, s_.keep_behind);
    const StateFacts& f = report_.state;
    int64_t in_cache = 0, borrowed_pages = 0;
    for (const PageHash& page : hashes_) in_cache += page.kv_bytes;
    for (const LayerFacts& layer : f.layers)
      if (layer.entry.kind != kv_state::kOwner) borrowed_pages += static_cast<int64_t>(layer.pages.size());
    check("bytes of K and V: formula = saved = live in the cache", "",
          f.kv_bytes > 0 && f.kv_bytes == f.expected_kv_bytes && in_cache == f.kv_bytes,
          fmt::format("{} = {} = {}", f.expected_kv_bytes, f.kv_bytes, in_cache));
    check("only owners have pages in the state", "", borrowed_pages == 0,
          fmt::format("{} pages of layers that own no K and V", borrowed_pages));
    report_.checks.push_back(pages_check("pages of the state = pages in the cache", "", hashes_,
                                         page_hashes(state_, parts_of(state_))));
    expected_ = go_on(engine_, own.id(), first_, plan_.suffix);
    report_.tokens = {first_};
    report_.tokens.insert(report_.tokens.end(), expected_.tokens.begin(), expected_.tokens.end());
  }

  void through(Tier& tier, int32_t target) {
    std::vector<double> stores;
    for (int64_t i = 0; i < plan_.repeats; i++) {
      on_work_(fmt::format("saving to {}", tier.name()), i, plan_.repeats);
      const double start = lab_seconds();
      tier.store(state_);
      stores.push_back(lab_seconds() - start);
    }
    TierTimes times{.way = tier.name(),
                    .what = tier.what(),
                    .stored_bytes = tier.stored_bytes(),
                    .pack = pack_,
                    .store = median_of(stores)};
    and_back(tier, target, times);
    if (!tier.cool()) return;
    times.way = tier.name() + ", cold";
    times.cold = true;
    and_back(tier, target, times);
  }

  void and_back(Tier& tier, int32_t target, TierTimes times) {
    std::vector<double> loads, unpacks;
    for (int64_t i = 0; i < plan_.repeats; i++) {
      on_work_(fmt::format("restoring from {}", times.way), i, plan_.repeats);
      poison_cache(target, times.way, i == 0);
      if (times.cold) tier.cool();
      note_cached_share(times.cached_share, tier, times.cold);
      const double start = lab_seconds();
      const Bytes loaded = tier.load();
      loads.push_back(lab_seconds() - start);
      const int64_t before = engine_.stats().kv_bytes_restored;
      const double loaded_at = lab_seconds();
      restore(target, loaded, tier.name());
      unpacks.push_back(lab_seconds() - loaded_at);
      times.kv_bytes_restored = engine_.stats().kv_bytes_restored - before;
      if (i == 0) held_to_the_run(target, times);
    }
    times.load = median_of(loads);
    times.unpack = median_of(unpacks);
    report_.tiers.push_back(times);
  }

  // A state like ours, but for its numbers: what lies in the cache before the true one comes. A restore that
  // does nothing would leave it there.
  void poison_cache(int32_t target, const std::string& way, bool look) {
    restore(target, poison_, "poison");
    if (!look) return;
    const std::vector<PageHash> now = page_hashes(engine_, target, s_.types);
    const size_t ours = equal_pages(hashes_, now);
    const bool lies_there = equal_pages(poison_hashes_, now) == poison_hashes_.size() && ours == 0;
    PoisonFacts facts{report_.state.kv_bytes, static_cast<int64_t>(now.size()), "", ""};
    try {
      const std::vector<float> logits = fed(engine_, target, {&first_, 1});
      const auto nans = std::count_if(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
      facts.outcome = same_bits(logits, expected_.next) ? "same logits" : "other logits";
      facts.message = fmt::format("{} of {} logits are NaN", nans, logits.size());
    } catch (const Error& error) {
      facts.outcome = "error";
      facts.message = error.what();
    }
    check("poisoned before: a restore that does nothing cannot pass", way,
          lies_there && facts.outcome != "same logits",
          fmt::format("{} of {} pages hold NaN, 0 the run's; the next step: {} ({})", now.size() - ours,
                      now.size(), facts.outcome, facts.message));
    report_.poison = std::move(facts);
  }

  void held_to_the_run(int32_t target, const TierTimes& times) {
    const StateFacts& f = report_.state;
    check("bytes moved = expected > 0", times.way,
          times.kv_bytes_restored == f.expected_kv_bytes && times.kv_bytes_restored > 0,
          fmt::format("{} restored, {} expected", times.kv_bytes_restored, f.expected_kv_bytes));
    report_.checks.push_back(pages_check("every page as before, by layer", times.way, hashes_,
                                         page_hashes(engine_, target, s_.types)));
    Continuation now;
    std::string error;
    try {
      now = go_on(engine_, target, first_, plan_.suffix);
    } catch (const Error& e) {  // what came back may be such that no step can be made from it
      error = fmt::format("; it ended: {}", e.what());
    }
    check("next logits equal, bit for bit", times.way, same_bits(now.next, expected_.next),
          fmt::format("{} logits{}", now.next.size(), error));
    size_t tokens = 0, rows = 0;
    for (size_t i = 0; i < now.tokens.size(); i++) {
      tokens += now.tokens[i] == expected_.tokens[i] ? 1 : 0;
      rows += now.rows[i] == expected_.rows[i] ? 1 : 0;
    }
    const size_t all = expected_.tokens.size();
    check("greedy tokens equal", times.way, tokens == all && rows == all,
          fmt::format("{}, {}", count_text(tokens, all, "tokens"),
                      count_text(rows, all, "logit rows bit for bit")));
  }

  // By turns, so that what else the machine does falls on both.
  void decode_both_ways(int32_t target) {
    std::vector<double> computed, restored;
    bool same = true;
    engine_.trim(target, 0);
    fed(engine_, target, plan_.prompt);
    for (int64_t i = 0; i < plan_.repeats; i++) {
      on_work_("decoding behind both caches", i, plan_.repeats);
      const int32_t branch = engine_.fork(target);
      const Continuation again = go_on(engine_, branch, first_, plan_.suffix);
      restore(branch, state_, "state");
      const Continuation behind = go_on(engine_, branch, first_, plan_.suffix);
      engine_.close(branch);
      same = same && again.rows == expected_.rows && behind.rows == expected_.rows;
      computed.insert(computed.end(), again.seconds.begin(), again.seconds.end());
      restored.insert(restored.end(), behind.seconds.begin(), behind.seconds.end());
    }
    report_.uninterrupted_seconds_per_token = median_of(computed);
    report_.restored_seconds_per_token = median_of(restored);
    check("computed anew and restored anew, by turns: the same", "", same,
          fmt::format("{} times each, every logit row bit for bit", plan_.repeats));
  }

  // The restored cache is cut to the earliest length that it says it can go on from, and one before that.
  void go_back(int32_t target) {
    restore(target, state_, "state");
    const int64_t length = report_.prompt_tokens, earliest = engine_.earliest_restart(target);
    check("earliest restart: the state's = the engine's", "",
          static_cast<uint64_t>(earliest) == report_.state.header.earliest_restart,
          fmt::format("{} of {} positions", earliest, length));
    if (earliest > 1) {
      std::string refusal = "it was not refused";
      bool refused = false;
      try {
        engine_.trim(target, earliest - 1);
      } catch (const Error& error) {
        refused = error.code() == ErrorCode::limit;
        refusal = error.what();
      }
      check("one position before it is refused", "", refused, refusal);
    }
    engine_.trim(target, earliest);
    std::vector<int32_t> again(plan_.prompt.begin() + earliest, plan_.prompt.end());
    again.push_back(first_);
    check("from there on, the next logits are equal, bit for bit", "",
          same_bits(fed(engine_, target, again), expected_.next),
          fmt::format("{} of the prompt fed again, then the next token", again.size() - 1));
  }

  // Pages that held NaN are used again by a run of half the length: nothing of it may shine through.
  void poisoned_pages_are_harmless(int32_t target) {
    const std::span<const int32_t> half = std::span(plan_.prompt).first((plan_.prompt.size() + 1) / 2);
    engine_.trim(target, 0);
    const std::vector<float> clean = fed(engine_, target, half);
    restore(target, poison_, "poison");
    engine_.trim(target, 0);
    check("a fresh run in pages that held NaN gives its own logits", "",
          same_bits(fed(engine_, target, half), clean), fmt::format("{} tokens", half.size()));
  }

  const OffloadEngine& s_;
  Engine& engine_;
  const OffloadPlan& plan_;
  OnLabWork on_work_;
  OffloadReport report_;
  Bytes state_, poison_;
  std::vector<PageHash> hashes_, poison_hashes_;
  int32_t first_ = 0;  // the token that the prompt's last logits pick
  Continuation expected_;
  double pack_ = 0;
};

}  // namespace

int64_t expected_kv_bytes(const ModelSpec& spec, const KvTypes& types, int64_t length, int64_t keep_behind) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < spec.n_layers(); i++) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (!layer.owns_kv(i)) continue;
    const int64_t positions = length - first_held(*layer.attention, length, keep_behind);
    bytes += positions * position_bytes_of(*layer.attention, types);
  }
  return bytes;
}

StateFacts state_facts(std::span<const std::byte> state, const ModelSpec& spec, int64_t keep_behind) {
  const StateParts parts = parts_of(state);
  ensure(parts.whole && parts.entries.size() == spec.layers.size(), ErrorCode::internal,
         "a sound state: its parts do not fill its {} bytes", state.size());
  StateFacts f{.header = parts.header, .types = parts.types};
  const auto length = static_cast<int64_t>(f.header.length);
  f.bytes = static_cast<int64_t>(state.size());
  f.layer_map_bytes = static_cast<int64_t>(parts.entries.size() * sizeof(kv_state::LayerEntry));
  f.token_bytes = static_cast<int64_t>(parts.attachment_at - parts.tokens_at);
  f.attachment_bytes = static_cast<int64_t>(parts.pages_at - parts.attachment_at);
  f.pages = static_cast<int64_t>(parts.pages.size());
  f.checksum_bytes = f.pages * static_cast<int64_t>(sizeof(Hash128));
  f.expected_kv_bytes = expected_kv_bytes(spec, parts.types, length, keep_behind);
  f.needed_kv_bytes = kv_bytes_needed(spec, length, parts.types);
  for (const kv_state::LayerEntry& entry : parts.entries) f.layers.push_back({.entry = entry});
  for (const PageHash& page : page_hashes(state, parts)) {
    LayerFacts& layer = f.layers[static_cast<size_t>(page.layer)];
    layer.positions += page.positions;
    layer.kv_bytes += page.kv_bytes;
    layer.pages.push_back(page);
    f.kv_bytes += page.kv_bytes;
  }
  for (size_t i = 0; i < f.layers.size(); i++) {
    LayerFacts& layer = f.layers[i];
    if (!spec.layers[i].attention) continue;
    const AttentionSpec& a = *spec.layers[i].attention;
    layer.position_bytes = position_bytes_of(a, parts.types);
    layer.keys = hash_over(layer.pages, &PageHash::keys);
    layer.values = hash_over(layer.pages, &PageHash::values);
    if (layer.entry.kind == kv_state::kBorrower)
      f.shared_bytes_saved += (length - first_held(a, length, keep_behind)) * layer.position_bytes;
  }
  return f;
}

size_t most_state_bytes(const OffloadEngine& s, size_t attachment_bytes) {
  const ModelSpec& spec = s.engine.spec();
  const int64_t length = s.engine.context();
  int64_t owners = 0;
  for (int64_t i = 0; i < spec.n_layers(); i++)
    owners += spec.layers[static_cast<size_t>(i)].owns_kv(i) ? 1 : 0;
  const auto pages = static_cast<size_t>(owners * ((length + kBlock - 1) / kBlock));
  return sizeof(kv_state::Header) + spec.layers.size() * sizeof(kv_state::LayerEntry) +
         static_cast<size_t>(length) * sizeof(int32_t) + attachment_bytes + pages * sizeof(Hash128) +
         static_cast<size_t>(expected_kv_bytes(spec, s.types, length, length));
}

std::optional<ReplayFacts> replay_facts(const ModelSpec& spec, const KvTypes& types, const StateFacts& facts,
                                        int64_t keep_behind) {
  const auto length = static_cast<int64_t>(facts.header.length),
             earliest = static_cast<int64_t>(facts.header.earliest_restart);
  if (earliest <= 1) return {};
  ReplayFacts replay{.earliest = earliest, .boundary = earliest / 2};
  replay.recompute_tokens = replay.boundary;
  for (const LayerFacts& layer : facts.layers) {
    if (layer.entry.kind != kv_state::kOwner || layer.entry.window == 0) continue;
    const auto held = static_cast<int64_t>(layer.entry.first);
    const int64_t seen = std::max<int64_t>(0, replay.boundary - static_cast<int64_t>(layer.entry.window) + 1);
    const int64_t end = std::min(held, replay.boundary);
    if (seen < end) replay.lost.push_back({int64_t{layer.entry.layer}, seen, end - seen});
  }
  replay.keep_behind = length - replay.boundary;
  replay.extra_kv_bytes =
      expected_kv_bytes(spec, types, length, std::max(keep_behind, replay.keep_behind)) - facts.kv_bytes;
  return replay;
}

bool OffloadReport::passed() const {
  const MutationCounts counts = count_mutations(mutations);
  const auto exact = [](const CurvePoint& point) {
    return std::all_of(point.reload.begin(), point.reload.end(),
                       [](const CurvePoint::Reload& r) { return r.same_logits; });
  };
  return counts.missed == 0 && counts.misnamed == 0 &&
         std::all_of(checks.begin(), checks.end(), [](const OffloadCheck& c) { return c.passed; }) &&
         std::all_of(curve.begin(), curve.end(), exact);
}

OffloadReport prove_offload(const OffloadEngine& engine, const OffloadPlan& plan,
                            std::span<Tier* const> tiers, OnLabWork on_work) {
  ensure(!plan.prompt.empty(), ErrorCode::usage, "the prompt holds no token: expected at least one");
  const auto wanted = static_cast<int64_t>(plan.prompt.size()) + plan.suffix;
  ensure(wanted <= engine.engine.context(), ErrorCode::limit,
         "{} tokens and {} after them exceed the context of {} positions", plan.prompt.size(), plan.suffix,
         engine.engine.context());
  ensure(expected_kv_bytes(engine.engine.spec(), engine.types, 1, 0) > 0, ErrorCode::usage,
         "the model has no layer that keeps K and V: there is nothing to save");
  return Proof(engine, plan, on_work).run(tiers);
}

bool StateFileReport::passed() const {
  return error.empty() &&
         std::all_of(checks.begin(), checks.end(), [](const OffloadCheck& c) { return c.passed; });
}

StateFileReport verify_state(const OffloadEngine& setting, std::span<const std::byte> state,
                             std::string_view name, OnLabWork on_work) {
  StateFileReport report;
  Engine& engine = setting.engine;
  const OpenSequence target(engine);
  on_work("checking the state", 0, 2);
  try {
    engine.restore(target.id(), state, setting.model, name, [&](std::span<const std::byte> bytes) {
      report.attachment.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    });
  } catch (const Error& error) {
    report.error = error.what();
    return report;
  }
  report.state = state_facts(state, engine.spec(), setting.keep_behind);
  const std::vector<PageHash> restored = page_hashes(engine, target.id(), setting.types);
  int64_t live = 0;
  for (const PageHash& page : restored) live += page.kv_bytes;
  const int64_t moved = engine.stats().kv_bytes_restored;
  report.checks.push_back(
      {"every checksum, and header and map against this engine", "", true,
       fmt::format("{} layers, {} pages", report.state->layers.size(), report.state->pages)});
  report.checks.push_back({"bytes moved = live in the cache", "", moved == live,
                           fmt::format("{} restored, {} live", moved, live)});
  const std::span<const int32_t> tokens = engine.tokens(target.id());
  if (tokens.empty()) return report;
  // A checksum cannot tell who computed what it covers. Computing it again can.
  on_work("computing it again", 1, 2);
  const OpenSequence fresh(engine);
  fed(engine, fresh.id(), tokens);
  report.checks.push_back(pages_check("its pages = those of its token ids, computed again", "",
                                      page_hashes(engine, fresh.id(), setting.types), restored));
  return report;
}

}  // namespace lapidary::kvlab
