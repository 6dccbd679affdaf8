// The way of a cache out of the engine and back: saved, overwritten with NaN, restored, continued; through
// every tier, held to the run that was never interrupted.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "engine/engine.h"
#include "kvlab/offload/claim.h"
#include "kvlab/offload/curve.h"
#include "kvlab/offload/mutations.h"
#include "kvlab/offload/state_parts.h"
#include "kvlab/offload/tiers.h"
#include "kvlab/report_frame.h"

namespace lapidary::kvlab {

// What `lapidary run` attaches to raw text, so that it can go on from a state of the lab.
inline constexpr std::string_view kRawAttachment = "{\"mode\":\"raw\"}";

// An engine, and what the lab has to know of it. REQUIRES: three free sequences.
struct OffloadEngine {
  Engine& engine;
  Hash128 model;            // model_hash()
  KvTypes types;            // of its cache
  int64_t keep_behind = 0;  // of its options
};

struct OffloadPlan {
  std::vector<int32_t> prompt;  // at least one token
  int64_t suffix = 16;          // tokens that are decoded after it, greedily; at least one
  int64_t repeats = 3;          // of what is timed
};

struct LayerFacts {
  kv_state::LayerEntry entry;
  int64_t positions = 0, position_bytes = 0, kv_bytes = 0;
  std::vector<PageHash> pages;
  Hash128 keys, values;  // over those of the pages
};

struct StateFacts {
  kv_state::Header header;
  KvTypes types;
  int64_t bytes = 0;  // header, map, token ids, attachment, K and V, checksums of the pages
  int64_t layer_map_bytes = 0, token_bytes = 0, attachment_bytes = 0, checksum_bytes = 0;
  int64_t kv_bytes = 0;            // the sum over the pages
  int64_t expected_kv_bytes = 0;   // the formula
  int64_t needed_kv_bytes = 0;     // without whole pages behind windows: kv_bytes_needed()
  int64_t shared_bytes_saved = 0;  // what borrowers would add if they kept K and V of their own
  int64_t pages = 0;
  std::vector<LayerFacts> layers;
};
StateFacts state_facts(std::span<const std::byte> state, const ModelSpec& spec, int64_t keep_behind);

// Bytes of K and V that a saved sequence of `length` positions holds: owners only; all positions without a
// window, else from the page on in which the next query's window, or what is kept behind it, begins.
int64_t expected_kv_bytes(const ModelSpec& spec, const KvTypes& types, int64_t length, int64_t keep_behind);

// The most bytes that a saved state of this engine can have: a full context, nothing left out of it.
size_t most_state_bytes(const OffloadEngine& engine, size_t attachment_bytes);

// Going back: a length from `earliest` on is exact with what is saved. `boundary` is an earlier one, and what
// going on from there would take.
struct ReplayFacts {
  int64_t earliest = 0, boundary = 0;
  struct Lost {
    int64_t layer = 0, first = 0, positions = 0;  // seen from the boundary, no longer held
  };
  std::vector<Lost> lost;
  int64_t keep_behind = 0;       // positions behind the windows that would have kept them
  int64_t extra_kv_bytes = 0;    // and what they add to the state
  int64_t recompute_tokens = 0;  // without them: all tokens before the boundary
};
// Nothing where every length will do.
std::optional<ReplayFacts> replay_facts(const ModelSpec& spec, const KvTypes& types, const StateFacts& facts,
                                        int64_t keep_behind);

struct OffloadCheck {
  std::string name, way;  // way: "ram", "disk, cold"; empty where it is none of them
  bool passed = false;
  std::string detail;
};

struct PoisonFacts {
  int64_t kv_bytes = 0, pages = 0;
  std::string outcome;  // "error", "other logits", "same logits": the last one fails
  std::string message;
};

struct TierTimes {  // medians, in seconds
  std::string way, what;
  int64_t stored_bytes = 0, kv_bytes_restored = 0;
  double pack = 0;    // the engine: pages into bytes, with their checksums
  double store = 0;   // the tier
  double load = 0;    // the tier
  double unpack = 0;  // the engine: every checksum, then bytes into pages
  bool cold = false;
  std::optional<double> cached_share;  // Tier::cached_share() as the load began: of the worst repeat
};

struct OffloadReport {
  int64_t prompt_tokens = 0, suffix_tokens = 0, repeats = 0;
  StateFacts state;
  std::optional<ReplayFacts> replay;
  PoisonFacts poison;
  std::vector<OffloadCheck> checks;
  std::vector<TierTimes> tiers;
  std::vector<int32_t> tokens;                                                 // of the uninterrupted run
  double uninterrupted_seconds_per_token = 0, restored_seconds_per_token = 0;  // decode, medians
  std::vector<Mutation> mutations;
  std::vector<CurvePoint> curve;
  std::vector<BreakEven> break_even;
  std::vector<ClaimFact> claim;
  bool passed() const;  // every check, every mutation
};

// Fills all but mutations, curve and claim.
OffloadReport prove_offload(const OffloadEngine& engine, const OffloadPlan& plan,
                            std::span<Tier* const> tiers, OnLabWork on_work);

// A saved state of any origin, held to this engine: restored, then computed anew from its token ids.
struct StateFileReport {
  std::string error;  // why it was refused; empty when it was not
  std::optional<StateFacts> state;
  std::string attachment;
  std::vector<OffloadCheck> checks;
  bool passed() const;
};
StateFileReport verify_state(const OffloadEngine& engine, std::span<const std::byte> state,
                             std::string_view name, OnLabWork on_work);

boost::json::object offload_json(const OffloadReport& report, const Repro& repro);
boost::json::object state_file_json(const StateFileReport& report, const Repro& repro);
std::string offload_csv(const OffloadReport& report);  // the curve

}  // namespace lapidary::kvlab
