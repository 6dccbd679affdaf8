// Caches out of the engine and back: on every kind of layer, every type, below and past the windows; and that
// the lab notices when a tier, an engine or a mutation does not do what it says.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/real_models.h"
#include "kvlab/offload_lab.h"
#include "spec/footprint.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

std::vector<std::string> failures(const std::vector<OffloadCheck>& checks) {
  std::vector<std::string> out;
  for (const OffloadCheck& c : checks)
    if (!c.passed) out.push_back(c.way + ": " + c.name + ": " + c.detail);
  return out;
}
const std::vector<std::string> kNone;

const OffloadCheck& check_of(const OffloadReport& report, std::string_view part,
                             std::string_view way = "ram") {
  for (const OffloadCheck& c : report.checks)
    if (c.name.find(part) != std::string::npos && (c.way == way || c.way.empty())) return c;
  ADD_FAILURE() << "no check " << part;
  return report.checks.front();
}

struct Case {
  std::string model;
  KvTypes types;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* model : {"gemma4-e2b-tiny", "gemma4-e4b-tiny", "gemma4-12b-tiny", "gemma4-26b-tiny",
                            "gemma4-31b-tiny", "gemma3-tiny", "llama-tiny", "gemma4-e2b-tiny-Q8_0"})
    for (const KvTypes& types : {KvTypes(DType::f32), KvTypes(DType::f16), KvTypes(DType::bf16),
                                 KvTypes(DType::i8), KvTypes(DType::i8, DType::bf16)})
      all.push_back({model, types});
  return all;
}
class Offload : public testing::TestWithParam<Case> {};
std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  return test_name(info.param.model + "_" + kv_types_name(info.param.types));
}
INSTANTIATE_TEST_SUITE_P(, Offload, testing::ValuesIn(cases()), name_of_case);

// Below every window, at a page's end, past all windows by more than a page.
TEST_P(Offload, ComesBackTheSame) {
  Lab lab(GetParam().model, GetParam().types);
  for (const int64_t length : {1, 5, 32, 73}) {
    const OffloadReport report = lab.prove(lab.plan(length));
    EXPECT_EQ(failures(report.checks), kNone) << length << " tokens";
    EXPECT_TRUE(report.passed());
    EXPECT_EQ(report.tokens.size(), 6u);
    EXPECT_NE(report.poison.outcome, "same logits");
    ASSERT_EQ(report.tiers.size(), 2u);
    for (const TierTimes& tier : report.tiers) {
      EXPECT_GT(tier.kv_bytes_restored, 0);
      EXPECT_EQ(tier.kv_bytes_restored, report.state.kv_bytes);
    }
    const StateFacts& f = report.state;
    EXPECT_EQ(f.bytes,
              176 + f.layer_map_bytes + f.token_bytes + f.attachment_bytes + f.kv_bytes + f.checksum_bytes);
    EXPECT_EQ(f.needed_kv_bytes, kv_bytes_needed(lab.checkpoint.spec, length, GetParam().types));
    EXPECT_GE(f.kv_bytes, f.needed_kv_bytes);
    EXPECT_LT(f.kv_bytes - f.needed_kv_bytes,
              32 * kv_bytes_per_token(lab.checkpoint.spec, GetParam().types).sliding + 1);
  }
}

TEST_P(Offload, EveryDamageIsCaughtAndNamed) {
  Lab lab(GetParam().model, GetParam().types);
  for (const int64_t length : {5, 73}) {
    const std::vector<Mutation> mutations = run_mutations(lab.setting, lab.plan(length), 1, kSilent);
    std::map<std::string, int> groups;
    for (const Mutation& m : mutations) {
      groups[m.group]++;
      if (m.verdict == Mutation::Verdict::changed_nothing) continue;
      EXPECT_EQ(m.verdict, Mutation::Verdict::caught)
          << m.group << ", " << m.name << ": expected \"" << m.expected << "\", got \"" << m.message << "\"";
    }
    EXPECT_LE(count_mutations(mutations).changed_nothing, 2);
    for (const char* group : {"flip a byte", "swap two parts", "shift by a position", "truncate",
                              "of something else, sealed", "splice of two files", "zstd"})
      EXPECT_GE(groups[group], 3) << group;
  }
}

TEST(OffloadState, SavesOwnersOnlyAndSaysWhatSharingSaves) {
  Lab lab("gemma4-e2b-tiny", DType::f32);
  const OffloadReport report = lab.prove(lab.plan(73));
  int64_t borrowers = 0, saved = 0;
  for (size_t i = 0; i < report.state.layers.size(); ++i) {
    const LayerFacts& layer = report.state.layers[i];
    if (layer.entry.kind != kv_state::kBorrower) {
      EXPECT_GT(layer.kv_bytes, 0);
      continue;
    }
    borrowers++;
    EXPECT_EQ(layer.kv_bytes, 0);
    EXPECT_TRUE(layer.pages.empty());
    const AttentionSpec& a = *lab.checkpoint.spec.layers[i].attention;
    saved +=
        (a.window > 0 ? 73 - 64 : 73) * a.n_kv_heads * a.head_dim * 8;  // the window begins in the third page
  }
  EXPECT_GT(borrowers, 0);
  EXPECT_EQ(report.state.shared_bytes_saved, saved);
}

// The bytes of the formula, worked out by hand for a window of 8: positions from 64 on, of 73.
TEST(OffloadState, TheFormulaCountsPagesBehindWindows) {
  ModelSpec spec;
  spec.layers.resize(3);
  for (int64_t i = 0; i < 3; ++i)
    spec.layers[static_cast<size_t>(i)].attention = AttentionSpec{.n_heads = 4,
                                                                  .n_kv_heads = 2,
                                                                  .head_dim = 16,
                                                                  .window = i == 0 ? 8 : 0,
                                                                  .kv_owner = std::min<int64_t>(i, 1)};
  EXPECT_EQ(expected_kv_bytes(spec, DType::f16, 73, 0), (73 - 64) * 128 + 73 * 128);
  EXPECT_EQ(expected_kv_bytes(spec, DType::f16, 73, 3), (73 - 32) * 128 + 73 * 128);
  EXPECT_EQ(expected_kv_bytes(spec, DType::i8, 8, 0), 8 * 2 * 2 * 2 * (16 + 4));
  EXPECT_EQ(expected_kv_bytes(spec, DType::f32, 1, 0), 2 * 256);
}

TEST(OffloadState, KeepingBehindBuysTheEarlierBoundaryForTheBytesThatWereSaid) {
  Lab plain("gemma4-e2b-tiny");
  const OffloadReport without = plain.prove(plain.plan(90));
  ASSERT_TRUE(without.replay);
  const ReplayFacts& replay = *without.replay;
  EXPECT_GT(replay.earliest, replay.boundary);
  EXPECT_FALSE(replay.lost.empty());
  EXPECT_GT(replay.extra_kv_bytes, 0);
  EXPECT_EQ(replay.recompute_tokens, replay.boundary);
  Lab keeping("gemma4-e2b-tiny", DType::f16, replay.keep_behind);
  const OffloadReport with = keeping.prove(keeping.plan(90));
  EXPECT_EQ(failures(with.checks), kNone);
  EXPECT_LE(static_cast<int64_t>(with.state.header.earliest_restart), replay.boundary);
  EXPECT_EQ(with.state.kv_bytes, without.state.kv_bytes + replay.extra_kv_bytes);
  for (const ReplayFacts::Lost& lost : replay.lost)
    EXPECT_LE(static_cast<int64_t>(with.state.layers[static_cast<size_t>(lost.layer)].entry.first),
              lost.first);
}

TEST(OffloadState, NothingIsLostBelowTheWindows) {
  Lab lab("gemma4-e2b-tiny");
  EXPECT_FALSE(lab.prove(lab.plan(7)).replay);
  Lab llama("llama-tiny");
  const OffloadReport report = llama.prove(llama.plan(90));
  EXPECT_FALSE(report.replay);
  EXPECT_EQ(report.state.header.earliest_restart, 0u);
}

// What the state says of its pages is what lies in the cache, found on another way.
TEST(OffloadState, HashesOfTheStateAreThoseOfTheCacheAndPoisonChangesThemAll) {
  for (const KvTypes& types : {KvTypes(DType::f32), KvTypes(DType::i8, DType::f16)}) {
    Lab lab("gemma4-12b-tiny", types);
    const int32_t sequence = lab.engine.open();
    feed_all(lab.engine, sequence, lab.plan(45).prompt);
    Bytes state;
    lab.engine.save(sequence, lab.setting.model, {}, [&](std::span<const std::byte> part) {
      state.insert(state.end(), part.begin(), part.end());
    });
    const StateParts parts = parts_of(state);
    ASSERT_TRUE(parts.whole);
    const std::vector<PageHash> live = page_hashes(lab.engine, sequence, types);
    EXPECT_EQ(page_hashes(state, parts), live);
    Bytes sealed = state;
    seal(sealed);
    EXPECT_EQ(sealed, state) << "sealing agrees with the writer";
    const Bytes poison = poisoned(state);
    EXPECT_EQ(poison.size(), state.size());
    const std::vector<PageHash> nan = page_hashes(poison, parts_of(poison));
    ASSERT_EQ(nan.size(), live.size());
    for (size_t i = 0; i < nan.size(); ++i) {
      EXPECT_NE(nan[i].keys, live[i].keys);
      EXPECT_NE(nan[i].values, live[i].values);
      EXPECT_EQ(nan[i].first, live[i].first);
    }
  }
}

// A tier that gives back what it should not: the wrong state, sound and sealed.
class LyingTier : public RamTier {
 public:
  explicit LyingTier(Bytes lie) : lie_(std::move(lie)) {}
  Bytes load() const override { return lie_; }

 private:
  Bytes lie_;
};

TEST(OffloadSelfTest, ASealedLieIsSeenByHashesAndLogits) {
  Lab lab("gemma4-e2b-tiny");
  const OffloadPlan plan = lab.plan(40);
  RamTier honest;
  Tier* tiers[] = {&honest};
  prove_offload(lab.setting, plan, tiers, kSilent);
  Bytes lie = honest.load();
  const StateParts parts = parts_of(lie);
  const PagePart& page = parts.pages.back();
  for (size_t i = 0; i < page.bytes; i += 2) lie[page.at + i] ^= std::byte{1};
  seal(lie);
  LyingTier liar(lie);
  tiers[0] = &liar;
  const OffloadReport report = prove_offload(lab.setting, plan, tiers, kSilent);
  EXPECT_FALSE(report.passed());
  EXPECT_TRUE(check_of(report, "poisoned before").passed);
  EXPECT_TRUE(check_of(report, "bytes moved").passed) << "as many, and the wrong ones";
  EXPECT_FALSE(check_of(report, "every page as before").passed);
  EXPECT_FALSE(check_of(report, "next logits equal").passed);
  EXPECT_NE(check_of(report, "every page as before")
                .detail.find(fmt::format("layer {}, positions {} to", page.layer, page.block * 32)),
            std::string::npos);
}

TEST(OffloadSelfTest, ARestoreThatChangesNothingIsSeen) {
  Lab lab("llama-tiny");
  const OffloadPlan plan = lab.plan(40);
  RamTier honest;
  Tier* tiers[] = {&honest};
  prove_offload(lab.setting, plan, tiers, kSilent);
  LyingTier liar(poisoned(honest.load()));  // what lies in the cache stays there
  tiers[0] = &liar;
  const OffloadReport report = prove_offload(lab.setting, plan, tiers, kSilent);
  EXPECT_FALSE(check_of(report, "every page as before").passed);
  EXPECT_FALSE(check_of(report, "next logits equal").passed);
  EXPECT_FALSE(check_of(report, "greedy tokens equal").passed);
  EXPECT_FALSE(report.passed());
}

TEST(OffloadSelfTest, AReaderThatAcceptsEverythingMissesEverything) {
  Lab lab("gemma4-e2b-tiny");
  RamTier ram;
  Tier* tiers[] = {&ram};
  prove_offload(lab.setting, lab.plan(40), tiers, kSilent);
  const Bytes state = ram.load();
  const auto gullible = [](std::span<const std::byte>) -> std::optional<Refusal> { return {}; };
  const auto vague = [](std::span<const std::byte>) -> std::optional<Refusal> {
    return Refusal{ErrorCode::data, "something is wrong"};
  };
  const MutationInput input{state, state, 256};
  const MutationCounts missed = count_mutations(mutate_state(input, gullible, kSilent));
  EXPECT_EQ(missed.caught, 0);
  EXPECT_GT(missed.missed, 80);
  EXPECT_GE(missed.changed_nothing, 4) << "splices of a file with itself";
  EXPECT_EQ(missed.missed + missed.changed_nothing, missed.tried);
  EXPECT_GT(count_mutations(mutate_state(input, vague, kSilent)).misnamed, 70);
  OffloadReport report;
  report.mutations = mutate_frame(state, 3, gullible);
  EXPECT_EQ(count_mutations(report.mutations).missed, 1) << "only the state itself is damaged";
  EXPECT_FALSE(report.passed());
}

TEST(OffloadSelfTest, PlansThatDoNotFitAreRefused) {
  Lab lab("llama-tiny", DType::f16, 0, 64);
  EXPECT_TRUE(throws_error([&] { lab.prove(lab.plan(60)); }, ErrorCode::limit,
                           "60 tokens and 5 after them exceed the context of 64 positions"));
  EXPECT_TRUE(throws_error([&] { lab.prove(lab.plan(0)); }, ErrorCode::usage, "the prompt holds no token"));
  RamTier ram;
  Tier* tiers[] = {&ram};
  EXPECT_TRUE(throws_error(
      [&] {
        measure_curve(lab.setting, {{8, 60}, 5, 1, 1}, tiers, kSilent);
      },
      ErrorCode::limit, "60 positions and 5 after them exceed the context of 64"));
  EXPECT_TRUE(throws_error(
      [&] {
        measure_curve(lab.setting, {{8, 8}, 5, 1, 1}, tiers, kSilent);
      },
      ErrorCode::usage, "rising lengths"));
}

TEST(OffloadStateFile, IsHeldToWhatItsTokensGive) {
  Lab lab("gemma4-e2b-tiny");
  RamTier ram;
  Tier* tiers[] = {&ram};
  prove_offload(lab.setting, lab.plan(73), tiers, kSilent);
  Bytes state = ram.load();
  Lab other("gemma4-e2b-tiny");
  const StateFileReport sound = verify_state(other.setting, state, "s", kSilent);
  EXPECT_TRUE(sound.passed()) << sound.error;
  EXPECT_EQ(failures(sound.checks), kNone);
  ASSERT_TRUE(sound.state);
  EXPECT_EQ(sound.state->header.length, 73u);
  EXPECT_EQ(sound.attachment, kRawAttachment);

  Bytes forged = state;  // another first value, and all checksums right again
  forged[parts_of(state).pages[2].at] ^= std::byte{1};
  seal(forged);
  Lab third("gemma4-e2b-tiny");
  const StateFileReport caught = verify_state(third.setting, forged, "s", kSilent);
  EXPECT_EQ(caught.error, "") << "no checksum tells";
  EXPECT_FALSE(caught.passed()) << "its token ids do";

  state[200] ^= std::byte{1};
  const StateFileReport damaged = verify_state(third.setting, state, "s", kSilent);
  EXPECT_FALSE(damaged.passed());
  EXPECT_NE(damaged.error.find("map of layers, layer 0"), std::string::npos) << damaged.error;
  Lab wide("gemma4-e2b-tiny", DType::f32);
  EXPECT_NE(
      verify_state(wide.setting, ram.load(), "s", kSilent).error.find("key dtype: expected f32, got f16"),
      std::string::npos);
}

// 23,040 bytes a token of SmolLM2-135M in a type of two bytes.
TEST(RealOffload, SmolComesBackTheSameAndWeighsWhatItShould) {
  const Checkpoint checkpoint = open_checkpoint(cached_model(kSmol.name));
  Engine engine(checkpoint.spec, *checkpoint.tensors,
                {.max_sequences = 3, .context = 128, .kv_dtype = DType::f16});
  const OffloadEngine setting{engine, model_hash(checkpoint.spec, *checkpoint.tensors), DType::f16, 0};
  RamTier ram;
  ZstdTier zstd(std::make_unique<RamTier>(), 3, most_state_bytes(setting, kRawAttachment.size()));
  Tier* tiers[] = {&ram, &zstd};
  const OffloadPlan plan{random_tokens(1, 70, checkpoint.spec.vocab_size), 8, 1};
  const OffloadReport report = prove_offload(setting, plan, tiers, kSilent);
  EXPECT_EQ(failures(report.checks), kNone);
  EXPECT_EQ(report.state.kv_bytes, 70 * 23040);
  EXPECT_EQ(report.state.shared_bytes_saved, 0);
}

TEST(RealOffload, GemmaComesBackPastItsWindow) {
  const Checkpoint checkpoint = open_checkpoint(cached_model(kGemma.name));
  Engine engine(checkpoint.spec, *checkpoint.tensors,
                {.max_sequences = 3, .context = 640, .kv_dtype = DType::i8});
  const OffloadEngine setting{engine, model_hash(checkpoint.spec, *checkpoint.tensors), DType::i8, 0};
  RamTier ram;
  Tier* tiers[] = {&ram};
  const OffloadPlan plan{random_tokens(1, 560, checkpoint.spec.vocab_size), 4, 1};
  const OffloadReport report = prove_offload(setting, plan, tiers, kSilent);
  EXPECT_EQ(failures(report.checks), kNone);
  EXPECT_TRUE(report.replay);
}

}  // namespace
}  // namespace lapidary::test
