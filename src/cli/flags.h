// Bounds of flags, said in words that fit into the help.
#pragma once

#include <CLI/Validators.hpp>
#include <cstdint>

namespace lapidary {

CLI::Validator at_least(int64_t least);
CLI::Validator between(int64_t least, int64_t most);

}  // namespace lapidary
