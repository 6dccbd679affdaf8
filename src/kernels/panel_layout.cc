#include "kernels/panel_layout.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "base/blocks.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "kernels/panels.h"

namespace lapidary::kernels {
namespace {

// Two panels, the second one with padding; a row of two of the longest blocks.
constexpr int64_t kRows = kLanes + 1, kColumns = 512;

bool is_finite_block(DType dtype, std::span<const std::byte> block) {
  std::vector<float> values(dtype_info(dtype).block_elements);
  decode_row(dtype, block, values);
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// Blocks of random bits, but for those whose scales happen to be no numbers.
std::vector<std::byte> known_weight(DType dtype) {
  const size_t block = dtype_info(dtype).block_bytes;
  std::vector<std::byte> bytes(static_cast<size_t>(kRows) * row_bytes(dtype, kColumns));
  uint64_t drawn = 0;
  for (size_t at = 0; at < bytes.size(); at += block) {
    const std::span<std::byte> one(bytes.data() + at, block);
    do {
      for (size_t i = 0; i < block; i += sizeof(std::array<uint32_t, 4>)) {
        const std::array<uint32_t, 4> bits = philox(0, 0, drawn++);
        std::memcpy(one.data() + i, bits.data(), std::min(sizeof bits, block - i));
      }
    } while (!is_finite_block(dtype, one));
  }
  return bytes;
}

std::string name_layout(DType dtype) {
  Panels panels = plan_panels({dtype, {kRows, kColumns}, {}});  // refuses what is never packed
  const std::vector<std::byte> bytes = known_weight(dtype);
  const TensorView weight{dtype, {kRows, kColumns}, bytes};
  std::vector<std::byte> packed(panels.bytes());
  ensure(!pack_panels(weight, panels, 0, panels.n_panels(), packed.data()), ErrorCode::internal,
         "the known weight of {} holds no number", dtype_name(dtype));
  panels.data = packed.data();
  Hasher hasher;
  hasher.add(packed);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < kColumns; ++column) {
      hasher.add(uint64_t{std::bit_cast<uint32_t>(panel_weight(panels, row, column))});
    }
  }
  return fmt::format("{}-{}", dtype_name(dtype), hash_text(hasher.digest()).substr(0, 16));
}

}  // namespace

std::string panel_layout(DType dtype) {
  static std::mutex mutex;
  static std::map<DType, std::string> known;
  const std::scoped_lock lock(mutex);
  std::string& name = known[dtype];
  if (name.empty()) name = name_layout(dtype);
  return name;
}

}  // namespace lapidary::kernels
