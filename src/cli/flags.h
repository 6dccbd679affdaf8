// Bounds of flags, said in words that fit into the help.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace lapidary {

CLI::Validator at_least(int64_t least);
CLI::Validator between(int64_t least, int64_t most);
CLI::Validator not_empty();
CLI::Validator kv_types();         // names of base/kv_types.h
CLI::Validator unsigned_number();  // CLI11 would let -1 wrap around

}  // namespace lapidary
