// The engine: weights packed for this CPU, a paged KV cache, and forward steps over batches of sequences.
// Every logit row depends only on its own sequence's tokens and positions: the same bits for any batch, chunk
// and thread count (but in NumericMode::fast, where batch and chunk matter). Not thread-safe: one caller at a
// time (the engine brings its own threads).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/hash.h"
#include "base/kv_types.h"
#include "engine/arithmetic.h"
#include "engine/kv_page.h"
#include "engine/probe.h"
#include "engine/traffic.h"
#include "spec/model_spec.h"
#include "spec/tensor_io.h"

namespace lapidary {

struct EngineOptions {
  int threads = 0;      // 0: physical cores within the cgroup's quota
  bool pin = false;     // each thread on a core of its own
  int64_t chunk = 256;  // rows of one step: prefill is cut into pieces of at most this many
  int64_t max_sequences = 8;
  int64_t context = 0;  // positions per sequence; 0: the model's max_position
  KvTypes kv_dtype;     // of keys and values (base/kv_types.h): f32; the commands take f16
  Arithmetic arithmetic = kDefaultArithmetic;  // of products with quantised weights
  NumericMode mode = NumericMode::exact;
  // Positions kept behind each window, so that a sequence can be cut back that far (trim). They cost their
  // bytes in every layer with a window; 0 keeps what is left in partly used pages only.
  int64_t keep_behind = 0;
  // Memory for the pages of all sequences; 0: room for all of them at their greatest. A step that needs more
  // throws Error(limit) and leaves no trace (see kv_room).
  int64_t kv_bytes = 0;
  // Weights that the source holds packed are used where they lie (the pages of a file), or copied first to
  // memory of huge pages.
  bool copy_packed = false;
  FunctionRef<void(int64_t done, int64_t total)>* on_load = nullptr;  // progress of packing, in elements
};

// What a feed asks for: logits of no row, of its last, of all; hidden: no logits, but every row goes through
// all layers and the final norm, where a probe sees it.
enum class Want { none, last, all, hidden };

struct Feed {
  int32_t sequence = 0;
  std::span<const int32_t> tokens;  // appended to the sequence
  Want want = Want::last;
};

// Memory of KV pages, in bytes of the pools: what the engine may use, and what its sequences hold.
struct KvRoom {
  int64_t total = 0;  // EngineOptions::kv_bytes, or what all sequences take at their greatest
  int64_t in_use = 0;
  int64_t free() const { return total - in_use; }
};

// Where the time and the bytes of an engine went.
struct EngineStats {
  double load_seconds = 0;
  int64_t weight_bytes = 0;          // packed panels and small tensors
  int64_t weight_bytes_in_file = 0;  // of them, those that are used where the source holds them packed
  int64_t mapped_bytes = 0;          // tables gathered by row from the file
  int64_t kv_bytes_in_use = 0;       // pages that hold live positions; a shared page counts once
  int64_t kv_bytes_reserved = 0;     // address space of the pools
  int64_t workspace_bytes = 0;
  int64_t steps = 0, rows = 0;    // forward steps and rows run so far
  int64_t kv_page_copies = 0;     // shared pages that a writer had to copy
  int64_t kv_bytes_restored = 0;  // K and V taken from saved states
};

class Engine {
 public:
  // Reads, checks and packs every tensor. Throws Error(data) on missing or misshaped tensors and on NaN or
  // infinite weights (named).
  Engine(const ModelSpec& spec, const TensorSource& source, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;

  int32_t open();                // a new empty sequence; Error(limit) when all are in use
  void close(int32_t sequence);  // its pages are free at once
  int64_t length(int32_t sequence) const;
  std::span<const int32_t> tokens(int32_t sequence) const;  // all that were fed; valid until it is fed again
  int64_t context() const;

  // A new sequence with the same past, which it shares until one of the two writes. Error(limit) as open().
  int32_t fork(int32_t sequence);
  // Forgets all tokens from `length` on. What is fed then gives the bits of a fresh run. Possible are 0 and
  // every length from earliest_restart() on: Error(limit) names the layer whose window is gone, and nothing
  // has changed. Feeding the last tokens once more after trim() gives their logits again.
  void trim(int32_t sequence, int64_t length);
  int64_t earliest_restart(int32_t sequence) const;

  static int64_t kv_page_positions();  // of one page
  KvRoom kv_room() const;
  // The most that feeding n tokens to a sequence takes of the room: new pages, and copies of shared ones.
  int64_t kv_bytes_to_feed(int32_t sequence, int64_t n) const;
  // What closing the sequence would give back: pages that no other one shares.
  int64_t kv_bytes_of_its_own(int32_t sequence) const;
  // The most that a sequence of this length ever takes while it gets there.
  int64_t kv_bytes_at_length(int64_t length) const;

  // A sequence as bytes that any engine on the same model can go on from (docs/formats.md): what the caller
  // attaches comes back as it was. `model` is model_hash() of what this engine runs.
  using StateSink = FunctionRef<void(std::span<const std::byte>)>;
  void save(int32_t sequence, const Hash128& model, std::span<const std::byte> attachment,
            StateSink sink) const;
  // Replaces the contents of an open sequence. Error(data) on damage, Error(usage) on another model or
  // arithmetic, Error(limit) beyond the context: each names the field, or layer and positions. `accept` sees
  // the attachment once all is known to be sound, and may throw. Whatever is thrown, nothing has changed.
  // `name` is for messages.
  void restore(int32_t sequence, std::span<const std::byte> state, const Hash128& model,
               std::string_view name, StateSink accept);

  // logits: [V], after softcap; token_index counts within feeds[feed].tokens. Called in order of rows within
  // a feed.
  using OnLogits = FunctionRef<void(size_t feed, int64_t token_index, std::span<const float> logits)>;

  // Appends the tokens of all feeds (at most one feed per sequence) and reports the wanted logits.
  // Error(usage): token id out of range (id, sequence, index), unknown sequence, empty feed; Error(limit):
  // longer than the context. Checked before anything is changed. Error(limit) too when a step finds no room
  // for its pages. When a callback throws or a table row is damaged, the step at hand leaves no trace;
  // earlier steps (chunks) of the call stay.
  void forward(std::span<const Feed> feeds, OnLogits on_logits, Probe* probe = nullptr);

  // Pages of the first sequence that hold what the second has at the same place, bit for bit, become those of
  // the second: what restore() brought twice is there once, as after fork(). Returns the bytes this gave
  // back.
  int64_t share_pages(int32_t sequence, int32_t with);

  // The pages of a sequence: per owner in order of layers, in order of positions.
  void for_each_page(int32_t sequence, FunctionRef<void(const KvPageView&)> see) const;

  const ModelSpec& spec() const;
  EngineStats stats() const;
  const Traffic& traffic() const;
  int threads() const;
  // f32 whatever the options say where no weight is quantised: float weights are multiplied in float in every
  // mode.
  Arithmetic arithmetic() const;
  NumericMode mode() const;
  std::string numeric_mode() const;  // "exact, a16, f32 accumulation, kv bf16; avx2"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary
