#include "kvlab/recompute/ulps.h"

#include <bit>

#include "base/error.h"
#include "base/half.h"

namespace lapidary::kvlab {
namespace {

// The numbers of a format in their order: neighbours are neighbours, both zeros are 0.
template <typename Bits>
int64_t place(Bits bits) {
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const auto magnitude = static_cast<int64_t>(bits & static_cast<Bits>(~kSign));
  return (bits & kSign) != 0 ? -magnitude : magnitude;
}

int64_t place_of(double x, DType type) {
  switch (type) {
    case DType::f64: return place(std::bit_cast<uint64_t>(x));
    case DType::f32: return place(std::bit_cast<uint32_t>(static_cast<float>(x)));
    case DType::f16: return place(float_to_f16(static_cast<float>(x)));
    case DType::bf16: return place(float_to_bf16(static_cast<float>(x)));
    default: fail(ErrorCode::internal, "ulps of {} are not counted", dtype_name(type));
  }
}

}  // namespace

uint64_t ulps_between(double a, double b, DType type) {
  const int64_t p = place_of(a, type), q = place_of(b, type);
  return p > q ? static_cast<uint64_t>(p) - static_cast<uint64_t>(q)
               : static_cast<uint64_t>(q) - static_cast<uint64_t>(p);
}

}  // namespace lapidary::kvlab
