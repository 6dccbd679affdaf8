#include "formats/tensor_stream.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/blocks.h"
#include "base/error.h"
#include "base/quantise.h"
#include "base/quote.h"

namespace lapidary {
namespace {

constexpr size_t kStretchBytes = size_t{4} << 20;  // of the target, at least one row

class Stream {
 public:
  Stream(const PlannedTensor& plan, const TensorView& source, Team& team)
      : plan_(plan),
        source_(source),
        team_(team),
        columns_(static_cast<size_t>(source.columns())),
        row_bytes_(row_bytes(plan.to, columns_)),
        floats_(static_cast<size_t>(team.size())) {
    for (auto& row : floats_) row.resize(columns_);
  }

  void run(ByteSink sink) {
    const int64_t rows = source_.rows();
    const auto stretch =
        static_cast<int64_t>(std::max<size_t>(1, kStretchBytes / std::max<size_t>(1, row_bytes_)));
    std::vector<std::byte> out(static_cast<size_t>(std::min(stretch, rows)) * row_bytes_);
    for (int64_t first = 0; first < rows; first += stretch) {
      const int64_t count = std::min(stretch, rows - first);
      std::atomic<int64_t> bad{std::numeric_limits<int64_t>::max()};
      team_.parallel_for(count, 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t r = begin; r < end; ++r) {
          const auto target = std::span(out).subspan(static_cast<size_t>(r) * row_bytes_, row_bytes_);
          if (write_row(source_row(first + r), target, floats_[static_cast<size_t>(thread)])) continue;
          int64_t least = bad.load();
          while (first + r < least && !bad.compare_exchange_weak(least, first + r)) {
          }
        }
      });
      if (bad.load() != std::numeric_limits<int64_t>::max()) refuse(source_row(bad.load()));
      sink(std::span(out).first(static_cast<size_t>(count) * row_bytes_));
    }
  }

 private:
  // Row 2j + s of a head holds what the model has at row s * Hd/2 + j.
  int64_t source_row(int64_t row) const {
    if (plan_.paired_heads == 0) return row;
    const int64_t head_dim = source_.shape.front() / plan_.paired_heads, head = row / head_dim,
                  at = row % head_dim;
    return head * head_dim + at % 2 * (head_dim / 2) + at / 2;
  }

  bool write_row(int64_t row, std::span<std::byte> target, std::vector<float>& floats) const {
    const auto bytes = source_.row(row);
    const bool as_it_is = plan_.from == plan_.to && !plan_.subtract_one;
    if (as_it_is && is_quantised(plan_.to)) {
      std::memcpy(target.data(), bytes.data(), bytes.size());
      return true;
    }
    decode_row(plan_.from, bytes, floats);
    if (as_it_is) {
      std::memcpy(target.data(), bytes.data(), bytes.size());
      return std::all_of(floats.begin(), floats.end(), [](float x) { return std::isfinite(x); });
    }
    for (size_t i = 0; i < floats.size() && plan_.subtract_one; ++i) floats[i] -= 1.0f;
    return encode_row(plan_.to, floats, target);
  }

  [[noreturn]] void refuse(int64_t row) const {
    std::vector<float> floats(columns_);
    decode_row(plan_.from, source_.row(row), floats);
    const auto is_bad = [](float x) { return !std::isfinite(x); };
    auto at = std::find_if(floats.begin(), floats.end(), is_bad);
    if (at == floats.end()) {
      at = std::max_element(floats.begin(), floats.end(),
                            [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    }
    fail(ErrorCode::data,
         "{} (to be written as {}): row {}, column {}: expected a number that {} can hold, got {}",
         slot_name(plan_.slot), lapidary::quoted(plan_.name), row, at - floats.begin(), dtype_name(plan_.to),
         *at);
  }

  const PlannedTensor& plan_;
  const TensorView& source_;
  Team& team_;
  size_t columns_, row_bytes_;
  std::vector<std::vector<float>> floats_;  // one row for each thread
};

}  // namespace

void stream_tensor(const PlannedTensor& plan, const TensorView& source, Team& team, ByteSink sink) {
  Stream(plan, source, team).run(sink);
}

}  // namespace lapidary
