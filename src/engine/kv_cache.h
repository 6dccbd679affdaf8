// The KV cache: pages of kBlock positions of one owner layer, in two pools (layers with a window, layers
// without). Borrowers store nothing. Layers with a window keep a ring of pages and give back those that every
// later query has left behind. Sequences may share pages (fork) until one of them writes. Not thread-safe but
// for page(): rows of one step may be written and read by several threads once grow() has been called.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/kv_types.h"
#include "engine/kv_page.h"
#include "engine/page_pool.h"
#include "kernels/kernels.h"
#include "spec/model_spec.h"

namespace lapidary {

// What one page of a layer holds: kv heads one after the other (kv_layout.h).
struct KvGeometry {
  bool owner = false;
  int64_t n_kv_heads = 0, head_dim = 0, window = 0;
  kernels::KvLayout layout;
  size_t page_bytes() const { return layout.head_bytes * static_cast<size_t>(n_kv_heads); }
  // One position without the padding: what a saved state takes.
  size_t position_bytes() const;
};

struct KvCacheOptions {
  KvTypes types;
  int64_t max_sequences = 1;
  int64_t context = 0;
  int64_t step_rows = 1;    // most rows that one step adds to one sequence
  int64_t keep_behind = 0;  // positions kept behind a window, for trim()
  int64_t bytes = 0;        // of pages in use; 0: room for all sequences at their greatest
};

class KvCache {
 public:
  KvCache(const ModelSpec& spec, const KvCacheOptions& options);

  int32_t open();  // Error(limit) when all sequences are in use
  void close(int32_t sequence);
  bool is_open(int32_t sequence) const;
  int64_t length(int32_t sequence) const { return sequences_[static_cast<size_t>(sequence)].length; }
  std::span<const int32_t> tokens(int32_t sequence) const;

  // Pages of every owner layer for these tokens, none of them shared any more; commit() makes them count.
  // Error(limit) when there is no room for them; nothing has changed then.
  void grow(int32_t sequence, std::span<const int32_t> tokens);
  // n positions are written: length grows, pages that no later query sees go back.
  void commit(int32_t sequence, int64_t n);

  // A new sequence with the same past. Nothing is copied until one of the two writes into a shared page.
  int32_t fork(int32_t sequence);  // Error(limit) as open()

  // A length to which a sequence may be cut back and go on exactly needs, in each layer with a window, every
  // position that the next query sees. Such lengths are 0 and all from `length` to the sequence's own.
  struct Restart {
    int64_t length = 0;
    int64_t layer = -1;  // the layer that decides it; -1 when every length will do
  };
  Restart earliest_restart(int32_t sequence) const;
  // Forgets positions from `length` on. Error(usage) beyond the sequence, Error(limit) naming the layer when
  // the window there is gone; nothing has changed then.
  void trim(int32_t sequence, int64_t length);

  struct Blocks {
    int64_t first = 0, end = 0;
  };
  Blocks live(int64_t layer, int32_t sequence) const;  // blocks with pages of committed positions
  // The first block that a sequence of this length keeps.
  int64_t first_kept(int64_t layer, int64_t length) const;
  // Makes the sequence hold these tokens, in pages from the given block on, [L] (borrowers: ignored), whose
  // contents are for the caller to fill. REQUIRES: the pages fit (first_kept), and there is room for them.
  void assign(int32_t sequence, std::span<const int32_t> tokens, std::span<const int64_t> first_blocks);
  // The first n positions of a block, packed: per kv head keys [head_dim][n] and their scales [n], values
  // [n][head_dim] and their scales [n]; scales of q8 only.
  void copy_out(int64_t layer, int32_t sequence, int64_t block, int64_t n, std::byte* packed) const;
  void copy_in(int64_t layer, int32_t sequence, int64_t block, int64_t n, const std::byte* packed);

  // Whole pages that hold the same of the same tokens become those of `with`.
  void share_equal_pages(int32_t sequence, int32_t with);

  // The page of a layer that holds positions [block * kBlock, (block + 1) * kBlock). REQUIRES: live.
  std::byte* page(int64_t layer, int32_t sequence, int64_t block) const;
  KvPageView page_view(int64_t layer, int32_t sequence, int64_t block) const;  // REQUIRES: live
  int64_t n_layers() const { return static_cast<int64_t>(layers_.size()); }
  const KvGeometry& geometry(int64_t layer) const { return layers_[static_cast<size_t>(layer)].geometry; }
  // Rounds to the storage types and writes one position; k, v: [n_kv_heads * head_dim], used up. A position
  // is rounded once and alone, so that what is stored never depends on what comes with it. Answers the first
  // number that is not finite or that its type does not hold.
  struct Misfit {
    const char* what;  // "key" or "value"
    DType type;
    int64_t kv_head;
    float number;
  };
  std::optional<Misfit> store(const kernels::Kernels& kernels, int64_t layer, int32_t sequence,
                              int64_t position, float* k, float* v);
  // What is stored of one position, as floats.
  void read(int64_t layer, int32_t sequence, int64_t position, float* k, float* v) const;
  const KvTypes& types() const { return options_.types; }
  int64_t context() const { return options_.context; }
  int64_t max_sequences() const { return options_.max_sequences; }
  int64_t bytes_allowed() const { return options_.bytes; }
  int64_t bytes_to_grow(int32_t sequence, int64_t n) const;  // the most that grow() takes for n tokens
  int64_t bytes_to_assign(int64_t length,
                          std::span<const int64_t> first_blocks) const;  // what assign() takes
  int64_t bytes_of_its_own(int32_t sequence) const;  // in pages that no other sequence shares
  int64_t bytes_at_length(int64_t length) const;     // the most on the way to this length
  int64_t bytes_in_use() const { return sliding_.bytes_in_use() + full_.bytes_in_use(); }
  int64_t bytes_reserved() const { return sliding_.bytes_reserved() + full_.bytes_reserved(); }
  int64_t page_copies() const { return page_copies_; }  // shared pages that a writer made its own

 private:
  struct Layer {
    KvGeometry geometry;
    int64_t ring = 0;  // entries of the page table
  };
  struct PageTable {  // of one sequence and layer: block b is at entry b % ring
    std::vector<int32_t> pages;
    int64_t first = 0, end = 0;  // blocks [first, end) have pages
  };
  struct Sequence {
    bool open = false;
    int64_t length = 0;
    std::vector<PageTable> tables;  // [L]; empty for borrowers
  };
  Sequence& at(int32_t sequence) { return sequences_[static_cast<size_t>(sequence)]; }
  const Sequence& at(int32_t sequence) const { return sequences_[static_cast<size_t>(sequence)]; }
  PagePool& pool(const Layer& layer) { return layer.geometry.window ? sliding_ : full_; }
  const PagePool& pool(const Layer& layer) const { return layer.geometry.window ? sliding_ : full_; }
  int32_t* token_row(int32_t sequence) const;
  int64_t restart_of(const Layer& layer, const PageTable& table) const;
  void release_before(const Layer& layer, PageTable& table, int64_t first);
  void release_from(const Layer& layer, PageTable& table, int64_t end);
  void own(const Layer& layer, PageTable& table, int64_t block);

  KvCacheOptions options_;
  std::vector<Layer> layers_;
  std::vector<Sequence> sequences_;
  Buffer tokens_;  // [max_sequences, context] ids
  PagePool sliding_, full_;
  int64_t page_copies_ = 0;
};

}  // namespace lapidary
