// The KV cache: pages of kBlock positions of one owner layer, in two pools (layers with a window, layers
// without). Borrowers store nothing. Layers with a window keep a ring of pages and give back those that every
// later query has left behind. Not thread-safe but for page(): rows of one step may be written and read by
// several threads once grow() has been called.
#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/dtype.h"
#include "spec/model_spec.h"

namespace lapidary {

// What one page of a layer holds: per kv head keys [head_dim][kBlock], then values [kBlock][padded_dim]
// (kernels.h has the reason).
struct KvGeometry {
  bool owner = false;
  int64_t n_kv_heads = 0, head_dim = 0, padded_dim = 0, window = 0;
  size_t element_bytes = 4;
  size_t head_bytes() const;
  size_t page_bytes() const { return head_bytes() * static_cast<size_t>(n_kv_heads); }
};

class PagePool {
 public:
  PagePool(size_t page_bytes, int64_t max_pages, const char* name);
  int32_t take();  // Error(limit) when none is left
  void give_back(int32_t page);
  std::byte* data(int32_t page) const { return memory_.data() + static_cast<size_t>(page) * page_bytes_; }
  int64_t bytes_in_use() const { return in_use_ * static_cast<int64_t>(page_bytes_); }
  int64_t bytes_reserved() const { return static_cast<int64_t>(memory_.size()); }

 private:
  size_t page_bytes_;
  const char* name_;
  Buffer memory_;
  std::vector<int32_t> free_;
  int32_t fresh_ = 0;  // pages never used so far
  int64_t max_pages_, in_use_ = 0;
};

class KvCache {
 public:
  // step_rows: most rows that one step adds to one sequence.
  KvCache(const ModelSpec& spec, DType dtype, int64_t max_sequences, int64_t context, int64_t step_rows);

  int32_t open();  // Error(limit) when all sequences are in use
  void close(int32_t sequence);
  bool is_open(int32_t sequence) const;
  int64_t length(int32_t sequence) const { return sequences_[static_cast<size_t>(sequence)].length; }

  void grow(int32_t sequence, int64_t n);  // pages for n more positions in every owner layer
  void commit(int32_t sequence,
              int64_t n);  // n positions are written: length grows, pages out of the window go back

  // The page of a layer that holds positions [block * kBlock, (block + 1) * kBlock). REQUIRES: live.
  std::byte* page(int64_t layer, int32_t sequence, int64_t block) const;
  const KvGeometry& geometry(int64_t layer) const { return layers_[static_cast<size_t>(layer)].geometry; }
  // Rounds to the storage type and writes one position; k, v: [n_kv_heads * head_dim]. Leaves in k and v what
  // was stored.
  void store(int64_t layer, int32_t sequence, int64_t position, float* k, float* v);
  DType dtype() const { return dtype_; }
  int64_t bytes_in_use() const { return sliding_.bytes_in_use() + full_.bytes_in_use(); }
  int64_t bytes_reserved() const { return sliding_.bytes_reserved() + full_.bytes_reserved(); }

 private:
  struct Layer {
    KvGeometry geometry;
    int64_t ring = 0;  // entries of the page table
  };
  struct PageTable {  // of one sequence and layer: block b is at entry b % ring
    std::vector<int32_t> pages;
    int64_t first = 0, end = 0;  // live blocks [first, end)
  };
  struct Sequence {
    bool open = false;
    int64_t length = 0;
    std::vector<PageTable> tables;  // [L]; empty for borrowers
  };
  PagePool& pool(const Layer& layer) { return layer.geometry.window ? sliding_ : full_; }
  void release(const Layer& layer, PageTable& table, int64_t first);

  DType dtype_;
  std::vector<Layer> layers_;
  std::vector<Sequence> sequences_;
  PagePool sliding_, full_;
};

}  // namespace lapidary
