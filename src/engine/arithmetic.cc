#include "engine/arithmetic.h"

#include "base/error.h"

namespace lapidary {

std::string_view arithmetic_name(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::f32: return "f32";
    case Arithmetic::a16: return "a16";
    case Arithmetic::a8: return "a8";
  }
  fail(ErrorCode::internal, "an arithmetic without a name");
}

Arithmetic arithmetic_from_name(std::string_view name) {
  for (const Arithmetic arithmetic : {Arithmetic::f32, Arithmetic::a16, Arithmetic::a8}) {
    if (arithmetic_name(arithmetic) == name) return arithmetic;
  }
  fail(ErrorCode::usage, "arithmetic: expected f32, a16 or a8, got \"{}\"", name);
}

std::string_view numeric_mode_name(NumericMode mode) {
  switch (mode) {
    case NumericMode::exact: return "exact";
    case NumericMode::fast: return "fast";
  }
  fail(ErrorCode::internal, "a numeric mode without a name");
}

NumericMode numeric_mode_from_name(std::string_view name) {
  for (const NumericMode mode : {NumericMode::exact, NumericMode::fast}) {
    if (numeric_mode_name(mode) == name) return mode;
  }
  fail(ErrorCode::usage, "numeric mode: expected exact or fast, got \"{}\"", name);
}

}  // namespace lapidary
