#include "kvlab/prefix/prefix.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/quote.h"
#include "engine/kv_state.h"
#include "kvlab/sequence.h"
#include "spec/footprint.h"

namespace lapidary::kvlab {
namespace {

using Tokens = std::vector<int32_t>;

// A sequence that was computed or read, kept or no longer.
struct Known {
  int64_t origin = 0;
  Tokens tokens;
  int32_t sequence = -1;  // of the engine; -1: evicted, or a state that was refused
  int64_t created = 0, used = 0, reuses = 0;
  std::optional<PrefixEviction> eviction;
  bool kept() const { return sequence >= 0; }
};

int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

struct RunResult {
  std::vector<float> logits;  // of the last token
  double seconds = 0;
  int64_t kv_written = 0;
};

RunResult feed_last(Engine& engine, int32_t sequence, std::span<const int32_t> tokens) {
  RunResult result;
  const int64_t written = engine.traffic().all_kv_written();
  const Feed feed{sequence, tokens, Want::last};
  const auto start = std::chrono::steady_clock::now();
  engine.forward({&feed, 1}, [&](size_t, int64_t, std::span<const float> logits) {
    result.logits.assign(logits.begin(), logits.end());
  });
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.kv_written = engine.traffic().all_kv_written() - written;
  return result;
}

// The token ids of a state that the engine refused; none where its bytes contradict each other.
Tokens tokens_of_state(std::span<const std::byte> bytes) {
  kv_state::Header header;
  if (bytes.size() < sizeof header) return {};
  std::memcpy(&header, bytes.data(), sizeof header);
  const size_t layers = size_t{header.n_layers} * sizeof(kv_state::LayerEntry);
  if (bytes.size() - sizeof header < layers) return {};
  const std::span<const std::byte> rest = bytes.subspan(sizeof header + layers);
  if (header.length > rest.size() / sizeof(int32_t)) return {};
  const auto ids = rest.first(static_cast<size_t>(header.length) * sizeof(int32_t));
  if (hash128(ids) != header.tokens_hash) return {};
  Tokens tokens(static_cast<size_t>(header.length));
  if (!ids.empty()) std::memcpy(tokens.data(), ids.data(), ids.size());
  return tokens;
}

// Which window keeps a sequence from going back further, as its pages show it.
PrefixWindow window_of(const Engine& engine, const Known& known, int64_t wanted) {
  PrefixWindow lost{.origin = known.origin, .wanted = wanted};
  int64_t layer = -1;  // of the page before
  engine.for_each_page(known.sequence, [&](const KvPageView& page) {
    if (page.layer == layer) return;
    layer = page.layer;
    const int64_t window = engine.spec().layers[static_cast<size_t>(layer)].attention->window;
    const int64_t earliest = window > 0 && page.first > 0 ? page.first + window - 1 : 0;
    if (earliest <= lost.earliest) return;
    lost.layer = layer;
    lost.window = window;
    lost.earliest = earliest;
  });
  return lost;
}

class Replay {
 public:
  Replay(Engine& engine, const PrefixOptions& options, const PieceOf& piece_of, PrefixReport& report)
      : engine_(engine), options_(options), piece_of_(piece_of), report_(report) {}
  ~Replay() {
    for (const Known& known : known_)
      if (known.kept()) engine_.close(known.sequence);
  }
  Replay(const Replay&) = delete;

  void take_state(const PrefixState& state) {
    PrefixStateReport told{.name = state.name};
    Known known{.origin = kStateOrigin, .created = kStateOrigin, .used = kStateOrigin};
    const int32_t sequence = engine_.open();
    known_.push_back(std::move(known));
    known_.back().sequence = sequence;  // closed with the others, whatever is thrown
    try {
      engine_.restore(sequence, state.bytes, state.model, state.name, [](std::span<const std::byte>) {});
      const auto tokens = engine_.tokens(sequence);
      known_.back().tokens.assign(tokens.begin(), tokens.end());
      told.loaded = true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::usage) throw;  // damage, or longer than the context
      engine_.close(sequence);
      known_.back().sequence = -1;
      known_.back().tokens = tokens_of_state(state.bytes);
      told.refusal = error.what();
      if (told.refusal.starts_with(state.name + ": ")) told.refusal.erase(0, state.name.size() + 2);
      told.field = told.refusal.substr(0, told.refusal.find(": expected"));
    }
    told.tokens = static_cast<int64_t>(known_.back().tokens.size());
    report_.state = std::move(told);
  }

  void prompt(int64_t index, const Tokens& tokens) {
    PrefixPrompt out{.index = index, .tokens = static_cast<int64_t>(tokens.size())};
    Known* source = choose(tokens, out);
    Known own{.origin = index, .tokens = tokens, .created = index, .used = index};
    const int64_t copies = engine_.stats().kv_page_copies;
    own.sequence = source ? engine_.fork(source->sequence) : engine_.open();
    const Closing closing{engine_, own.sequence};
    if (source) {
      engine_.trim(own.sequence, out.hit_tokens);
      engine_.for_each_page(own.sequence, [&](const KvPageView&) { ++out.pages_shared; });
      out.source = source->origin;
      source->used = index;
      ++source->reuses;
    }
    const RunResult run =
        feed_last(engine_, own.sequence, std::span(tokens).subspan(static_cast<size_t>(out.hit_tokens)));
    out.pages_copied = engine_.stats().kv_page_copies - copies;
    out.pages_shared -= out.pages_copied;
    out.bytes_not_recomputed = out.hit_tokens * report_.bytes_per_position;
    out.seconds = run.seconds;
    out.logits = hash128(std::as_bytes(std::span(run.logits)));
    out.first_token = best_of(run.logits);
    if (options_.check) hold_against_fresh(tokens, run, out);
    // A prompt that a kept sequence holds as a whole needs no slot of its own.
    const bool held = source && common_prefix(tokens, source->tokens) == out.tokens;
    if (!held) {
      make_room(index, out);
      closing.keep = true;
      known_.push_back(std::move(own));
    }
    report_.prompts.push_back(std::move(out));
  }

 private:
  struct Closing {  // of a sequence, unless it is kept
    Engine& engine;
    int32_t sequence;
    mutable bool keep = false;
    ~Closing() {
      if (!keep) engine.close(sequence);
    }
  };

  struct Longest {  // what has most in common with the prompt
    Known* known = nullptr;
    int64_t tokens = 0;
    void offer(Known& candidate, int64_t common) {
      if (common == 0 || common < tokens) return;
      if (known && common == tokens && candidate.used < known->used) return;
      known = &candidate;
      tokens = common;
    }
  };

  // The sequence to go on from, null for none; fills what is said of the choice.
  Known* choose(const Tokens& tokens, PrefixPrompt& out) {
    Longest usable, kept, evicted, refused;
    bool seen = false;  // something began with the same token
    for (Known& known : known_) {
      const int64_t shared = common_prefix(tokens, known.tokens), common = std::min(shared, out.tokens - 1);
      seen = seen || shared > 0;
      if (known.kept()) {
        kept.offer(known, common);
        if (common >= engine_.earliest_restart(known.sequence)) usable.offer(known, common);
      } else {
        (known.eviction ? evicted : refused).offer(known, common);
      }
    }
    out.hit_tokens = usable.tokens;
    out.reusable_tokens = std::max({kept.tokens, evicted.tokens, refused.tokens});
    const bool lost = out.reusable_tokens > out.hit_tokens;
    if (out.hit_tokens == out.tokens - 1 && seen) {
      out.reason = PrefixReason::whole;
    } else if (lost && kept.tokens == out.reusable_tokens) {
      out.reason = PrefixReason::window_lost;
      out.window = window_of(engine_, *kept.known, kept.tokens);
    } else if (lost && evicted.tokens == out.reusable_tokens) {
      out.reason = PrefixReason::evicted;
      out.eviction = evicted.known->eviction;
    } else if (lost) {
      out.reason = PrefixReason::header_mismatch;
    } else if (!usable.known) {
      out.reason = PrefixReason::cold;
    } else if (out.hit_tokens == static_cast<int64_t>(usable.known->tokens.size())) {
      out.reason = PrefixReason::extended;
    } else {
      out.reason = PrefixReason::differs;
      const auto at = static_cast<size_t>(out.hit_tokens);
      out.differs = {out.hit_tokens, token(usable.known->tokens[at]), token(tokens[at])};
    }
    return usable.known;
  }

  void hold_against_fresh(const Tokens& tokens, const RunResult& run, PrefixPrompt& out) {
    const OpenSequence sequence(engine_);
    const RunResult fresh = feed_last(engine_, sequence.id(), tokens);
    out.fresh_seconds = fresh.seconds;
    out.logits_equal =
        fresh.logits.size() == run.logits.size() &&
        std::memcmp(fresh.logits.data(), run.logits.data(), run.logits.size() * sizeof(float)) == 0;
    out.bytes_saved_by_counter = fresh.kv_written - run.kv_written;
  }

  void make_room(int64_t index, PrefixPrompt& out) {
    const auto n_kept = std::count_if(known_.begin(), known_.end(), [](const Known& k) { return k.kept(); });
    if (n_kept < options_.slots) return;
    Known* oldest = nullptr;
    for (Known& known : known_)
      if (known.kept() && (!oldest || known.used < oldest->used)) oldest = &known;
    engine_.close(oldest->sequence);
    oldest->sequence = -1;
    oldest->eviction = PrefixEviction{.origin = oldest->origin,
                                      .tokens = static_cast<int64_t>(oldest->tokens.size()),
                                      .evicted_by = index,
                                      .age = index - oldest->created,
                                      .idle = index - oldest->used,
                                      .reuses = oldest->reuses};
    report_.evictions.push_back(*oldest->eviction);
    out.evicted.push_back(oldest->origin);
  }

  Token token(int32_t id) const { return {id, piece_of_(id)}; }
  Token best_of(std::span<const float> logits) const {
    if (options_.words > 0)
      logits = logits.first(std::min(logits.size(), static_cast<size_t>(options_.words)));
    return token(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }

  Engine& engine_;
  const PrefixOptions& options_;
  const PieceOf& piece_of_;
  PrefixReport& report_;
  std::vector<Known> known_;
};

std::string origin_text(int64_t origin) {
  return origin == kStateOrigin ? "the saved state" : fmt::format("prompt {}", origin);
}

std::string quoted_token(const Token& token) {
  return token.piece.empty() ? fmt::format("id {}", token.id)
                             : fmt::format("{} (id {})", lapidary::quoted(token.piece), token.id);
}

std::string count_text(int64_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

}  // namespace

std::string_view prefix_reason_name(PrefixReason reason) {
  switch (reason) {
    case PrefixReason::whole: return "whole";
    case PrefixReason::extended: return "extended";
    case PrefixReason::cold: return "cold";
    case PrefixReason::evicted: return "evicted";
    case PrefixReason::differs: return "differs";
    case PrefixReason::window_lost: return "window_lost";
    case PrefixReason::header_mismatch: return "header_mismatch";
  }
  fail(ErrorCode::internal, "prefix reason {} has no name", static_cast<int>(reason));
}

bool is_hit(PrefixReason reason) {
  return reason == PrefixReason::whole || reason == PrefixReason::extended;
}

std::string prefix_why(const PrefixReport& report, const PrefixPrompt& p) {
  switch (p.reason) {
    case PrefixReason::whole: return "all but the last token, which is always fed";
    case PrefixReason::extended:
      return fmt::format("all {} tokens of {}; the rest is new", p.hit_tokens, origin_text(*p.source));
    case PrefixReason::cold: return "no sequence so far began with this token";
    case PrefixReason::evicted:
      return fmt::format(
          "{} had {} tokens of it; evicted by prompt {} at an age of {}, idle for {}, reused {}",
          origin_text(p.eviction->origin), p.reusable_tokens, p.eviction->evicted_by,
          count_text(p.eviction->age, "prompt"), p.eviction->idle, count_text(p.eviction->reuses, "time"));
    case PrefixReason::differs:
      return fmt::format("at token {}: {} in {}, {} here", p.differs->at, quoted_token(p.differs->kept),
                         origin_text(*p.source), quoted_token(p.differs->prompt));
    case PrefixReason::window_lost:
      return fmt::format(
          "{} has {} tokens of it, but layer {} no longer holds its window of {} there: earliest restart {}",
          origin_text(p.window->origin), p.window->wanted, p.window->layer, p.window->window,
          p.window->earliest);
    case PrefixReason::header_mismatch:
      return fmt::format("the saved state has {} tokens of it, but was refused: {}", p.reusable_tokens,
                         report.state->field);
  }
  fail(ErrorCode::internal, "prefix reason {} has no sentence", static_cast<int>(p.reason));
}

PrefixTotals PrefixReport::totals() const {
  PrefixTotals t;
  for (const PrefixReason reason : kPrefixReasons) t.by_reason[reason] = 0;
  for (const PrefixPrompt& p : prompts) {
    t.tokens += p.tokens;
    t.hit_tokens += p.hit_tokens;
    t.most_hit_tokens += p.tokens - 1;
    t.reusable_tokens += p.reusable_tokens;
    if (p.reason == PrefixReason::evicted) t.lost_evicted += p.lost_tokens();
    if (p.reason == PrefixReason::window_lost) t.lost_window += p.lost_tokens();
    if (p.reason == PrefixReason::header_mismatch) t.lost_mismatch += p.lost_tokens();
    ++(is_hit(p.reason) ? t.hits : t.misses);
    ++t.by_reason[p.reason];
    t.pages_shared += p.pages_shared;
    t.pages_copied += p.pages_copied;
    t.bytes_not_recomputed += p.bytes_not_recomputed;
    t.seconds += p.seconds;
    t.fresh_seconds += p.fresh_seconds;
  }
  return t;
}

bool PrefixReport::passed() const {
  return all_passed(checks);
}

std::vector<HistogramBar> doubling_histogram(const std::vector<int64_t>& values) {
  std::vector<HistogramBar> bars;
  if (values.empty()) return bars;
  const int64_t most = *std::max_element(values.begin(), values.end());
  for (int64_t from = 0, to = 0; from <= most; from = to + 1, to = from <= 2 ? from : 2 * to)
    bars.push_back({from, to, 0});
  for (const int64_t value : values)
    for (HistogramBar& bar : bars)
      if (value >= bar.from && value <= bar.to) ++bar.count;
  return bars;
}

void check_prefix(PrefixReport& report) {
  report.checks.clear();
  if (!report.options.check) return;
  const auto n = static_cast<int64_t>(report.prompts.size());
  int64_t equal = 0, as_counted = 0;
  std::string first_unequal, first_other;
  for (const PrefixPrompt& prompt : report.prompts) {
    if (*prompt.logits_equal) ++equal;
    else if (first_unequal.empty())
      first_unequal = fmt::format("; the first that has not is prompt {}", prompt.index);
    if (*prompt.bytes_saved_by_counter == prompt.bytes_not_recomputed) ++as_counted;
    else if (first_other.empty())
      first_other = fmt::format("; prompt {}: the fresh run wrote {} bytes more, expected {}", prompt.index,
                                *prompt.bytes_saved_by_counter, prompt.bytes_not_recomputed);
  }
  report.checks.push_back(
      {"first logits", equal == n,
       fmt::format("{} of {} prompts have the bits of a fresh run{}", equal, n, first_unequal)});
  report.checks.push_back(
      {"bytes not recomputed", as_counted == n,
       fmt::format("{} of {} prompts wrote less than a fresh run by hit tokens × {} bytes{}", as_counted, n,
                   report.bytes_per_position, first_other)});
}

PrefixReport run_prefix(Engine& engine, const KvTypes& kv, const std::vector<std::vector<int32_t>>& prompts,
                        const std::optional<PrefixState>& state, const PrefixOptions& options,
                        const PieceOf& piece_of, FunctionRef<void(int64_t done, int64_t total)> on_progress) {
  ensure(!prompts.empty(), ErrorCode::usage, "there are no prompts to replay");
  ensure(options.slots >= 1, ErrorCode::usage, "slots: expected at least 1, got {}", options.slots);
  for (size_t i = 0; i < prompts.size(); ++i) {
    ensure(!prompts[i].empty(), ErrorCode::usage, "prompt {} has no tokens", i);
    ensure(static_cast<int64_t>(prompts[i].size()) <= engine.context(), ErrorCode::limit,
           "prompt {} has {} tokens, the context holds {}", i, prompts[i].size(), engine.context());
    for (const int32_t id : prompts[i])
      ensure(id >= 0 && id < engine.spec().vocab_size, ErrorCode::usage,
             "prompt {}: token id {}: expected 0 to {}", i, id, engine.spec().vocab_size - 1);
  }
  PrefixReport report;
  report.options = options;
  report.kv_dtype = kv;
  const KvBytes bytes = kv_bytes_per_token(engine.spec(), kv);
  report.bytes_per_position = bytes.global + bytes.sliding;
  Replay replay(engine, options, piece_of, report);
  if (state) replay.take_state(*state);
  for (size_t i = 0; i < prompts.size(); ++i) {
    replay.prompt(static_cast<int64_t>(i), prompts[i]);
    on_progress(static_cast<int64_t>(i) + 1, static_cast<int64_t>(prompts.size()));
  }
  check_prefix(report);
  return report;
}

}  // namespace lapidary::kvlab
