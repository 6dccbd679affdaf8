// Caches out of the engine and back: on every kind of layer, every type, below and past the windows; and that
// the lab notices when a tier, an engine or a mutation does not do what it says.
#include "kvlab/offload.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "engine/harness.h"
#include "engine/real_models.h"
#include "spec/footprint.h"
#include "spec/model_hash.h"
#include "support/compare.h"
#include "support/golden_models.h"

namespace lapidary::test {
namespace {

using namespace kvlab;

constexpr auto kSilent = [](std::string_view, int64_t, int64_t) {};

struct Lab {
  Checkpoint checkpoint;
  Engine engine;
  OffloadEngine setting;

  explicit Lab(const std::string& model, const KvTypes& types = DType::f16, int64_t keep_behind = 0,
               int64_t context = 256)
      : checkpoint(open_golden(model)),
        engine(checkpoint.spec, *checkpoint.tensors,
               {.threads = 1,
                .chunk = 64,
                .max_sequences = 3,
                .context = context,
                .kv_dtype = types,
                .keep_behind = keep_behind}),
        setting{engine, model_hash(checkpoint.spec, *checkpoint.tensors), types, keep_behind} {}

  OffloadPlan plan(int64_t length, int64_t suffix = 5) const {
    return {random_tokens(3, length, checkpoint.spec.vocab_size), suffix, 1};
  }
  size_t most() const { return most_state_bytes(setting, kRawAttachment.size()); }
  OffloadReport prove(const OffloadPlan& plan) {
    RamTier ram;
    ZstdTier zstd(std::make_unique<RamTier>(), 1, most());
    Tier* tiers[] = {&ram, &zstd};
    return prove_offload(setting, plan, tiers, kSilent);
  }
};

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
INSTANTIATE_TEST_SUITE_P(, Offload, testing::ValuesIn(cases()), [](const auto& info) {
  return test_name(info.param.model + "_" + kv_types_name(info.param.types));
});

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

Bytes some_bytes(size_t n) {
  Bytes bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * i >> 3);
  return bytes;
}

TEST(OffloadTiers, GiveBackWhatTheyGot) {
  for (const size_t n : {0u, 1u, 300u, 100000u}) {
    const Bytes bytes = some_bytes(n);
    RamTier ram;
    ram.store(bytes);
    EXPECT_EQ(ram.load(), bytes);
    EXPECT_FALSE(ram.cool());
    for (const int level : {1, 3, 19}) {
      ZstdTier zstd(std::make_unique<RamTier>(), level, n);
      zstd.store(bytes);
      EXPECT_EQ(zstd.load(), bytes);
      EXPECT_EQ(zstd.stored_bytes(), static_cast<int64_t>(zstd_compressed(bytes, level).size()));
    }
  }
}

TEST(OffloadTiers, AZstdFrameHoldsWhatItSaysAndNotMoreThanAsked) {
  const Bytes bytes = some_bytes(5000), frame = zstd_compressed(bytes, 3);
  EXPECT_EQ(zstd_decompressed(frame, 5000, "f"), bytes);
  EXPECT_TRUE(throws_error([&] { zstd_decompressed(frame, 4999, "f"); }, ErrorCode::limit,
                           "f: zstd frame: expected at most 4999 bytes of content, got 5000"));
  EXPECT_TRUE(throws_error([&] { zstd_decompressed({}, 10, "f"); }, ErrorCode::data, "f: zstd magic"));
  Bytes skippable(16);  // magic 0x184D2A50, then its size
  const uint32_t head[] = {0x184D2A50, 8};
  std::memcpy(skippable.data(), head, sizeof head);
  EXPECT_TRUE(throws_error([&] { zstd_decompressed(skippable, 10, "f"); }, ErrorCode::data, "zstd magic"));
  for (size_t i = 0; i < frame.size(); ++i) {  // each byte, one bit
    Bytes damaged = frame;
    damaged[i] ^= static_cast<std::byte>(1 << (i % 8));
    try {
      EXPECT_EQ(zstd_decompressed(damaged, 1 << 20, "f"), bytes)
          << "byte " << i << " mattered and was not seen";
    } catch (const Error&) {
    }
  }
}

TEST(OffloadCurve, EveryLengthIsMeasuredAndExact) {
  Lab lab("gemma4-e2b-tiny");
  RamTier ram;
  ZstdTier zstd(std::make_unique<RamTier>(), 1, lab.most());
  Tier* tiers[] = {&ram, &zstd};
  const std::vector<CurvePoint> curve =
      measure_curve(lab.setting, {{1, 8, 33, 100}, 5, 2, 7}, tiers, kSilent);
  ASSERT_EQ(curve.size(), 4u);
  for (const CurvePoint& point : curve) {
    EXPECT_EQ(
        point.state_bytes,
        176 + 15 * 64 + 4 * point.length + static_cast<int64_t>(kRawAttachment.size()) +
            expected_kv_bytes(lab.checkpoint.spec, DType::f16, point.length, 0) + 16 * [&] {
              int64_t pages = 0;
              for (int64_t i = 0; i < lab.checkpoint.spec.n_layers(); ++i) {
                const LayerSpec& layer = lab.checkpoint.spec.layers[static_cast<size_t>(i)];
                if (!layer.owns_kv(i)) continue;
                const int64_t w = layer.attention->window;
                const int64_t first = w > 0 ? std::max<int64_t>(0, point.length - w + 1) / 32 : 0;
                pages += (point.length + 31) / 32 - first;
              }
              return pages;
            }());
    ASSERT_EQ(point.reload.size(), 2u);
    EXPECT_GT(point.recompute, 0);
    EXPECT_GT(point.suffix, 0);
    for (const CurvePoint::Reload& way : point.reload) {
      EXPECT_TRUE(way.same_logits);
      EXPECT_GT(way.seconds, 0);
    }
  }
  EXPECT_LT(curve[0].recompute, curve[3].recompute)
      << "the times of a length include those of the shorter ones";
}

CurvePoint point_of(int64_t length, double recompute, double reload) {
  CurvePoint point{
      .length = length, .state_bytes = 1000 * length, .recompute = recompute, .suffix = 0.5, .fork = 0.001};
  point.reload.push_back({"ram", reload, true, {}});
  return point;
}

TEST(OffloadCurve, BreakEvenIsWhereLoadingBeginsToWin) {
  const auto verdict = [](std::vector<CurvePoint> curve) { return break_even(curve).front(); };
  const BreakEven always = verdict({point_of(10, 2, 1), point_of(20, 4, 1)});
  EXPECT_EQ(always.verdict, BreakEven::Verdict::always);
  EXPECT_EQ(always.length, 10);
  const BreakEven never = verdict({point_of(10, 1, 2), point_of(20, 1, 1)});
  EXPECT_EQ(never.verdict, BreakEven::Verdict::never);
  EXPECT_FALSE(never.length);
  const BreakEven crosses = verdict({point_of(10, 1, 2), point_of(20, 4, 1)});  // -1 at 10, +3 at 20
  EXPECT_EQ(crosses.verdict, BreakEven::Verdict::crosses);
  EXPECT_DOUBLE_EQ(*crosses.length, 12.5);
  const BreakEven once = verdict({point_of(10, 3, 2), point_of(20, 1, 2), point_of(30, 3, 2)});
  EXPECT_DOUBLE_EQ(*once.length, 25) << "a win that a longer length takes back is none";
  EXPECT_TRUE(break_even({}).empty());
}

TEST(OffloadClaim, HasSixFactsInTheRunsOwnNumbers) {
  OffloadReport report;
  report.prompt_tokens = 50;
  report.suffix_tokens = 16;
  report.state.bytes = 1000;
  report.state.types = DType::f16;
  report.uninterrupted_seconds_per_token = 0.1;
  report.restored_seconds_per_token = 0.1;
  report.curve = {point_of(100, 10, 1)};
  report.tiers.push_back({.way = "zstd", .stored_bytes = 900});
  report.checks.push_back({"c", "ram", true, ""});
  const std::vector<ClaimFact> facts = claim_facts(report);
  ASSERT_EQ(facts.size(), 6u);
  std::map<std::string, double> numbers;
  for (size_t i = 0; i < facts.size(); ++i) {
    EXPECT_EQ(facts[i].letter, static_cast<char>('a' + i));
    EXPECT_FALSE(facts[i].lines.empty());
    for (const auto& [name, value] : facts[i].numbers) numbers[name] = value;
  }
  EXPECT_DOUBLE_EQ(numbers.at("speed_up, ram"), 10);
  EXPECT_DOUBLE_EQ(numbers.at("speed_up_against_engine, ram"), 0.001);
  EXPECT_DOUBLE_EQ(numbers.at("speed_up_at_50_percent, ram"), 10 / 5.5);
  EXPECT_DOUBLE_EQ(numbers.at("speed_up_of_1000_tokens, ram"), (10 + 0.5 + 99.9) / (1 + 0.5 + 99.9));
  EXPECT_DOUBLE_EQ(numbers.at("ttft_speed_up, ram"), 10.5 / 1.5);
  EXPECT_DOUBLE_EQ(numbers.at("ttft_speed_up_at_100_tokens, ram"), 20.0 / 11);
  EXPECT_DOUBLE_EQ(numbers.at("gb_per_s, ram"), 100000 / 1e9);
  EXPECT_DOUBLE_EQ(numbers.at("least_gb_per_s_that_pays"), 10000 / 1e9);
  EXPECT_DOUBLE_EQ(numbers.at("stored_share, zstd"), 0.9);
  EXPECT_EQ(numbers.at("checks_failed"), 0);
  report.checks.push_back({"d", "ram", false, ""});
  EXPECT_NE(claim_facts(report).back().lines.front().find("NOT exact"), std::string::npos);
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
