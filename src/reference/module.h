// The border between the program and the reference module: one C symbol, and a word that both must agree on.
#pragma once

#include "reference/reference.h"

namespace lapidary::reference {

inline constexpr const char* kModuleFile = "liblapidary_reference.so";
inline constexpr const char* kModuleSymbol = "lapidary_reference_module";

struct Module {
  const char* build;  // LAPIDARY_BUILD of the module: the layout of all that crosses the border
  std::unique_ptr<Reference> (*open)(const ModelSpec&, const TensorSource&, const ReferenceOptions&);
};

}  // namespace lapidary::reference
