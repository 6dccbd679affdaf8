// Damage that a restore must refuse, done to a saved state on purpose, and what the refusal names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kvlab/offload/curve.h"

namespace lapidary::kvlab {

struct OffloadEngine;

struct Mutation {
  enum class Verdict {
    caught,           // refused, and the message names what was done
    misnamed,         // refused, but the message names something else
    missed,           // taken for a sound state
    changed_nothing,  // the bytes, or what they decode to, are the same as before: proves nothing
  };
  std::string group;     // "flip a byte"
  std::string name;      // "header, version"
  std::string expected;  // what the message must name
  int64_t at_byte = 0;   // the first byte that differs
  Verdict verdict{};
  ErrorCode code{};  // of the refusal
  std::string message;
};
std::string_view verdict_name(Mutation::Verdict verdict);

// Why a reader refused a state.
struct Refusal {
  ErrorCode code{};
  std::string message;
};
// The error of a restore; nothing when the state was accepted.
using TryRestore = FunctionRef<std::optional<Refusal>(std::span<const std::byte> state)>;

struct MutationInput {
  std::span<const std::byte> state, other;  // two sound states of one model, of the same size
  int64_t context = 0;                      // of the engine
};
// Every kind of damage to the state itself.
std::vector<Mutation> mutate_state(const MutationInput& input, TryRestore try_restore, OnLabWork on_work);
// Damage to its zstd frame. `try_restore` gets what was decompressed.
std::vector<Mutation> mutate_frame(std::span<const std::byte> state, int level, TryRestore try_restore);

struct MutationCounts {
  int64_t tried = 0, caught = 0, misnamed = 0, missed = 0, changed_nothing = 0;
};
MutationCounts count_mutations(std::span<const Mutation> mutations);

// Both, on an engine: the target of all the attempts holds something else and must hold it afterwards, and
// takes the undamaged state in the end. Error(internal) when it does not.
struct OffloadPlan;
std::vector<Mutation> run_mutations(const OffloadEngine& engine, const OffloadPlan& plan, int zstd_level,
                                    OnLabWork on_work);

}  // namespace lapidary::kvlab
