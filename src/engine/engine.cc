#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "engine/forward.h"
#include "engine/kv_cache.h"
#include "engine/kv_state.h"
#include "engine/weights.h"

namespace lapidary {
namespace {

// What is asked for means something only where a weight is quantised.
Arithmetic in_effect(Arithmetic wanted, const Weights& weights) {
  return weights.quantised ? wanted : Arithmetic::f32;
}

// What the bits of K and V depend on.
std::string bits_mode(const EngineOptions& options) {
  const std::string_view mode = numeric_mode_name(options.mode);
  if (options.arithmetic == Arithmetic::f32) return fmt::format("{}, f32 accumulation", mode);
  const bool fewer_terms = options.mode == NumericMode::fast && options.arithmetic == Arithmetic::a16;
  return fmt::format("{}, {}{}, f32 accumulation", mode, arithmetic_name(options.arithmetic),
                     fewer_terms ? "/a8" : "");
}

const ModelSpec& validated(const ModelSpec& spec) {
  spec.validate();
  return spec;
}

EngineOptions settled(const ModelSpec& spec, EngineOptions o) {
  if (o.threads == 0) o.threads = usable_cores();
  if (o.context == 0) o.context = spec.max_position;
  ensure(o.chunk >= 1 && o.chunk <= 65536, ErrorCode::usage, "chunk: expected 1 to 65536 rows, got {}",
         o.chunk);
  ensure(o.max_sequences >= 1 && o.max_sequences <= 65536, ErrorCode::usage,
         "max_sequences: expected 1 to 65536, got {}", o.max_sequences);
  ensure(o.context >= 1 && o.context <= spec.max_position, ErrorCode::usage,
         "context: expected 1 to {} positions (the model's maximum), got {}", spec.max_position, o.context);
  ensure(o.keep_behind >= 0, ErrorCode::usage, "keep_behind: expected 0 or more positions, got {}",
         o.keep_behind);
  ensure(o.kv_bytes >= 0, ErrorCode::usage, "kv_bytes: expected 0 or more, got {}", o.kv_bytes);
  o.keep_behind = std::min(o.keep_behind, o.context);
  o.chunk = std::max<int64_t>(1, std::min(o.chunk, o.context * o.max_sequences));
  return o;
}

}  // namespace

struct Engine::Impl {
  using Clock = std::chrono::steady_clock;
  Clock::time_point started = Clock::now();
  ModelSpec spec;
  EngineOptions options;
  const kernels::Kernels& kernels;
  Team team;
  Weights weights;
  KvCache cache;
  Forward forward;
  std::vector<StepRow> rows;  // of the step at hand
  std::vector<int64_t> fed;   // tokens of each feed already in a step
  std::vector<bool> named;    // sequences that a feed has named
  double load_seconds = 0;
  int64_t steps = 0, rows_run = 0, bytes_restored = 0;

  Impl(const ModelSpec& s, const TensorSource& source, const EngineOptions& o)
      : spec(validated(s)),
        options(settled(spec, o)),
        kernels(kernels::kernels()),
        team(options.threads, options.pin),
        weights(load_weights(spec, source, team, {o.copy_packed, o.on_load})),
        cache(spec, {options.kv_dtype, options.max_sequences, options.context, options.chunk,
                     options.keep_behind, options.kv_bytes}),
        forward(spec, weights, kernels, team, cache, {in_effect(options.arithmetic, weights), options.mode},
                options.chunk) {
    options.arithmetic = in_effect(options.arithmetic, weights);
    rows.reserve(static_cast<size_t>(options.chunk));
    fed.reserve(static_cast<size_t>(options.max_sequences));
    named.resize(static_cast<size_t>(options.max_sequences));
    load_seconds = std::chrono::duration<double>(Clock::now() - started).count();
  }

  void check_open(int32_t sequence) const {
    ensure(cache.is_open(sequence), ErrorCode::usage, "sequence {} is not open", sequence);
  }

  void check(std::span<const Feed> feeds) {
    std::fill(named.begin(), named.end(), false);
    for (const Feed& feed : feeds) {
      check_open(feed.sequence);
      ensure(!named[static_cast<size_t>(feed.sequence)], ErrorCode::usage,
             "sequence {}: two feeds in one call, expected one", feed.sequence);
      named[static_cast<size_t>(feed.sequence)] = true;
      ensure(!feed.tokens.empty(), ErrorCode::usage, "sequence {}: no tokens to feed, expected at least one",
             feed.sequence);
      const int64_t n = static_cast<int64_t>(feed.tokens.size()), cached = cache.length(feed.sequence);
      ensure(n <= options.context - cached, ErrorCode::limit,
             "sequence {}: {} tokens after {} cached ones exceed the context of {} positions", feed.sequence,
             n, cached, options.context);
      for (int64_t i = 0; i < n; i++) {
        const int32_t token = feed.tokens[static_cast<size_t>(i)];
        ensure(token >= 0 && token < spec.vocab_size, ErrorCode::usage,
               "sequence {}: token {} is id {}, expected 0 to {}", feed.sequence, i, token,
               spec.vocab_size - 1);
      }
    }
  }

  // Fills `rows` from the feeds in order; false when there is nothing left.
  bool next_step(std::span<const Feed> feeds) {
    rows.clear();
    for (size_t f = 0; f < feeds.size(); f++) {
      const Feed& feed = feeds[f];
      const auto total = static_cast<int64_t>(feed.tokens.size());
      const int64_t start = cache.length(feed.sequence);
      const int64_t n = std::min(total - fed[f], options.chunk - static_cast<int64_t>(rows.size()));
      for (int64_t i = 0; i < n; i++) {
        const int64_t index = fed[f] + i;
        const bool logits = feed.want == Want::all || (feed.want == Want::last && index == total - 1);
        rows.push_back({.id = {feed.sequence, start + i},
                        .token = feed.tokens[static_cast<size_t>(index)],
                        .kept = logits || feed.want == Want::hidden,
                        .logits = logits,
                        .feed = f,
                        .token_index = index});
      }
      if (n > 0)
        cache.grow(feed.sequence, feed.tokens.subspan(static_cast<size_t>(fed[f]), static_cast<size_t>(n)));
      fed[f] += n;
    }
    return !rows.empty();
  }

  void commit_step() {
    for (size_t i = 0; i < rows.size();) {
      size_t end = i;
      while (end < rows.size() && rows[end].feed == rows[i].feed) end++;
      cache.commit(rows[i].id.sequence, static_cast<int64_t>(end - i));
      i = end;
    }
    steps++;
    rows_run += static_cast<int64_t>(rows.size());
  }
};

Engine::Engine(const ModelSpec& spec, const TensorSource& source, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(spec, source, options)) {}
Engine::~Engine() = default;

int32_t Engine::open() {
  return impl_->cache.open();
}

void Engine::close(int32_t sequence) {
  impl_->check_open(sequence);
  impl_->cache.close(sequence);
}

int64_t Engine::length(int32_t sequence) const {
  impl_->check_open(sequence);
  return impl_->cache.length(sequence);
}

std::span<const int32_t> Engine::tokens(int32_t sequence) const {
  impl_->check_open(sequence);
  return impl_->cache.tokens(sequence);
}

int32_t Engine::fork(int32_t sequence) {
  impl_->check_open(sequence);
  return impl_->cache.fork(sequence);
}

void Engine::trim(int32_t sequence, int64_t length) {
  impl_->check_open(sequence);
  impl_->cache.trim(sequence, length);
}

int64_t Engine::earliest_restart(int32_t sequence) const {
  impl_->check_open(sequence);
  return impl_->cache.earliest_restart(sequence).length;
}

void Engine::save(int32_t sequence, const Hash128& model, std::span<const std::byte> attachment,
                  StateSink sink) const {
  impl_->check_open(sequence);
  write_state(impl_->cache, sequence, {impl_->spec, model, bits_mode(impl_->options)}, attachment, sink);
}

void Engine::restore(int32_t sequence, std::span<const std::byte> state, const Hash128& model,
                     std::string_view name, StateSink accept) {
  impl_->check_open(sequence);
  impl_->bytes_restored += read_state(impl_->cache, sequence, {impl_->spec, model, bits_mode(impl_->options)},
                                      state, name, accept);
}

int64_t Engine::kv_page_positions() {
  return kernels::kBlock;
}

int64_t Engine::share_pages(int32_t sequence, int32_t with) {
  impl_->check_open(sequence);
  impl_->check_open(with);
  const int64_t before = impl_->cache.bytes_in_use();
  impl_->cache.share_equal_pages(sequence, with);
  return before - impl_->cache.bytes_in_use();
}

KvRoom Engine::kv_room() const {
  return {impl_->cache.bytes_allowed(), impl_->cache.bytes_in_use()};
}

int64_t Engine::kv_bytes_to_feed(int32_t sequence, int64_t n) const {
  impl_->check_open(sequence);
  return impl_->cache.bytes_to_grow(sequence, n);
}

int64_t Engine::kv_bytes_of_its_own(int32_t sequence) const {
  impl_->check_open(sequence);
  return impl_->cache.bytes_of_its_own(sequence);
}

int64_t Engine::kv_bytes_at_length(int64_t length) const {
  return impl_->cache.bytes_at_length(length);
}

int64_t Engine::context() const {
  return impl_->options.context;
}
const ModelSpec& Engine::spec() const {
  return impl_->spec;
}
int Engine::threads() const {
  return impl_->team.size();
}
Arithmetic Engine::arithmetic() const {
  return impl_->options.arithmetic;
}
NumericMode Engine::mode() const {
  return impl_->options.mode;
}

void Engine::forward(std::span<const Feed> feeds, OnLogits on_logits, Probe* probe) {
  impl_->check(feeds);
  impl_->fed.assign(feeds.size(), 0);
  while (impl_->next_step(feeds)) {
    impl_->forward.run(impl_->rows, on_logits, probe);
    impl_->commit_step();
  }
}

EngineStats Engine::stats() const {
  const Impl& i = *impl_;
  return {.load_seconds = i.load_seconds,
          .weight_bytes = i.weights.packed_bytes,
          .weight_bytes_in_file = i.weights.packed_in_file_bytes,
          .mapped_bytes = i.weights.mapped_bytes,
          .kv_bytes_in_use = i.cache.bytes_in_use(),
          .kv_bytes_reserved = i.cache.bytes_reserved(),
          .workspace_bytes = i.forward.workspace_bytes(),
          .steps = i.steps,
          .rows = i.rows_run,
          .kv_page_copies = i.cache.page_copies(),
          .kv_bytes_restored = i.bytes_restored};
}

const Traffic& Engine::traffic() const {
  return impl_->forward.traffic();
}

void Engine::for_each_page(int32_t sequence, FunctionRef<void(const KvPageView&)> see) const {
  impl_->check_open(sequence);
  const KvCache& cache = impl_->cache;
  for (int64_t layer = 0; layer < cache.n_layers(); layer++) {
    const KvCache::Blocks live = cache.live(layer, sequence);
    for (int64_t block = live.first; block < live.end; block++) see(cache.page_view(layer, sequence, block));
  }
}

std::string Engine::numeric_mode() const {
  return fmt::format("{}, kv {}; {}", bits_mode(impl_->options), kv_types_name(impl_->options.kv_dtype),
                     impl_->kernels.name);
}

}  // namespace lapidary
