// Recomputed caches: what the exact mode promises on every golden model, what the comparison sees, and that
// it sees damage.
#include "kvlab/recompute/recompute.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>

#include "base/half.h"
#include "engine/real_models.h"
#include "kvlab/recompute/ulps.h"
#include "support/golden_models.h"

namespace lapidary::kvlab {
namespace {

using test::Tokens;

const Record* no_truth(std::span<const int32_t>, int64_t) {
  return nullptr;
}
void no_progress(std::string_view, int64_t, int64_t) {}

RunFacts engine_facts(NumericMode mode, const KvTypes& kv) {
  return {std::string(numeric_mode_name(mode)),
          "engine",
          "",
          kv.keys,
          kv.values,
          DType::f32,
          mode == NumericMode::exact};
}

RunResult run_engine(const Checkpoint& checkpoint, const RecomputePlan& plan, NumericMode mode,
                     const KvTypes& kv = DType::f16, Arithmetic arithmetic = kDefaultArithmetic) {
  const auto open = [&](int threads) {
    EngineOptions options{.threads = threads, .kv_dtype = kv, .arithmetic = arithmetic, .mode = mode};
    options.context = static_cast<int64_t>(plan.prompt.size()) + plan.decode_calls;
    options.max_sequences = *std::max_element(plan.batches.begin(), plan.batches.end());
    options.chunk = options.context * options.max_sequences;
    return engine_subject(std::make_unique<Engine>(checkpoint.spec, *checkpoint.tensors, options));
  };
  return recompute(checkpoint.spec, plan, engine_facts(mode, kv), open, no_truth, no_progress);
}

TEST(Ulps, AreCountedAcrossZeroAndBinades) {
  EXPECT_EQ(ulps_between(1, std::nextafter(1.0, 2.0), DType::f64), 1u);
  EXPECT_EQ(ulps_between(1, static_cast<double>(std::nextafter(1.0f, 0.0f)), DType::f32), 1u);
  EXPECT_EQ(ulps_between(22.375, 22.25, DType::bf16), 1u) << "between 16 and 32 a bf16 ulp is 1/8";
  EXPECT_EQ(ulps_between(20.75, 20.875, DType::bf16), 1u);
  EXPECT_EQ(ulps_between(1, 1 + 0x1p-9, DType::f16), 2u);
  EXPECT_EQ(ulps_between(0.0, -0.0, DType::f32), 0u);
  EXPECT_EQ(ulps_between(-0x1p-24, 0x1p-24, DType::f16), 2u) << "the least numbers on both sides of zero";
  const double most = std::numeric_limits<double>::max();
  EXPECT_EQ(ulps_between(-most, most, DType::f64), 2 * std::bit_cast<uint64_t>(most));
  EXPECT_THROW(ulps_between(1, 2, DType::i8), Error);
}

TEST(Recompute, PerCentIsAHundredOnlyWhereAllAreEqual) {
  EXPECT_EQ(percent_equal(172800, 172800), 100);
  EXPECT_EQ(percent_equal(172799, 172800), 99.9);
  EXPECT_EQ(percent_equal(0, 8), 0);
  EXPECT_EQ(grouped_number(172800), "172,800");
  EXPECT_EQ(grouped_number(0), "0");
  EXPECT_EQ(grouped_number(1234567), "1,234,567");
}

TEST(Recompute, CutsThatComeToTheSameAreDoneOnce) {
  RecomputePlan plan{.prompt = Tokens(5, 1), .decode_calls = 10};
  EXPECT_EQ(distinct_chunks(plan), (std::vector<int64_t>{1, 7, 0}));
  plan.chunks = {64, 15, 7, 7};
  EXPECT_EQ(distinct_chunks(plan), (std::vector<int64_t>{7, 0}));
}

TEST(Recompute, BadPlansAreRefused) {
  const Checkpoint checkpoint = test::open_golden_model("llama-tiny");
  const auto expect = [&](const RecomputePlan& plan, ErrorCode code, const std::string& part) {
    try {
      check_plan(checkpoint.spec, plan);
      FAIL() << "expected: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  expect({}, ErrorCode::usage, "the prompt is empty");
  expect({.prompt = {1, -1}}, ErrorCode::usage, "token 1 is -1");
  expect({.prompt = {1}, .chunks = {}}, ErrorCode::usage, "nothing to recompute");
  expect({.prompt = {1}, .decode_calls = checkpoint.spec.max_position}, ErrorCode::limit, "was made for");
}

class ExactRecompute : public testing::TestWithParam<std::string> {};

// The lab's assertion: a recomputed cache is the cache, on every golden model, past their windows too.
TEST_P(ExactRecompute, EveryBitIsTheSame) {
  const Checkpoint checkpoint = test::open_golden(GetParam());
  const RecomputePlan plan{
      .prompt = test::tokens_of(test::golden_of(GetParam())), .decode_calls = 3, .chunks = {1, 7, 0}};
  const RunResult run = run_engine(checkpoint, plan, NumericMode::exact);
  EXPECT_TRUE(run.same()) << run.verdict();
  EXPECT_TRUE(run.passed());
  ASSERT_EQ(run.recomputations.size(), 6u);
  int64_t elements = 0;
  for (int64_t i = 0; i < checkpoint.spec.n_layers(); ++i) {
    const LayerSpec& layer = checkpoint.spec.layers[static_cast<size_t>(i)];
    if (layer.owns_kv(i)) elements += 2 * layer.attention->n_kv_heads * layer.attention->head_dim;
  }
  elements *= static_cast<int64_t>(plan.prompt.size()) + plan.decode_calls;
  for (const Recomputation& r : run.recomputations) {
    EXPECT_EQ(r.kv().elements, elements);
    EXPECT_EQ(r.kv().equal, elements);
    EXPECT_FALSE(r.first) << r.first->op;
  }
  EXPECT_NE(run.verdict().find("exact: 100.0 % of " + grouped_number(elements)), std::string::npos)
      << run.verdict();
}

std::vector<std::string> all_goldens() {
  std::vector<std::string> names = test::golden_models();
  names.insert(names.end(), test::gguf_models().begin(), test::gguf_models().end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Goldens, ExactRecompute, testing::ValuesIn(all_goldens()), test::name_of_model);

class FastRecompute : public testing::TestWithParam<std::string> {};

// What the fast mode is for: a prefill that differs from decode, while small calls do not.
TEST_P(FastRecompute, OnePrefillDiffersAndSmallCallsDoNot) {
  const Checkpoint checkpoint = test::open_golden(GetParam());
  Tokens prompt = test::tokens_of(test::golden_of(GetParam()));
  prompt.resize(8);  // below the rows that count as many
  const RecomputePlan plan{.prompt = prompt, .decode_calls = 8, .chunks = {1, 7, 0}, .threads = {1}};
  const RunResult run = run_engine(checkpoint, plan, NumericMode::fast, DType::f32);
  ASSERT_EQ(run.recomputations.size(), 3u);
  EXPECT_TRUE(run.recomputations[0].same(16)) << "single tokens";
  EXPECT_TRUE(run.recomputations[1].same(16)) << "calls of 7";
  const Recomputation& prefill = run.recomputations[2];
  EXPECT_FALSE(prefill.same(16));
  EXPECT_FALSE(run.same());
  EXPECT_TRUE(run.passed()) << "nothing was promised";
  ASSERT_TRUE(prefill.first);
  EXPECT_EQ(prefill.first->layer, 0);
  const KvDifference kv = prefill.kv();
  EXPECT_LT(kv.equal, kv.elements);
  EXPECT_GT(kv.max_ulps, 0u);
  EXPECT_EQ(kv.histogram[0] + kv.histogram[1] + kv.histogram[2] + kv.histogram[3], kv.elements);
  EXPECT_NE(run.verdict().find("2 of 3 recomputations the same in every bit"), std::string::npos)
      << run.verdict();
}
INSTANTIATE_TEST_SUITE_P(Goldens, FastRecompute,
                         testing::Values("llama-tiny", "gemma3-tiny", "gemma4-e2b-tiny", "gemma4-31b-tiny",
                                         "llama-tiny-Q4_0", "gemma4-e2b-wide-Q4_K_M"),
                         test::name_of_model);

// Batches as invariance has them: the company of a sequence changes its bits in the fast mode alone.
TEST(BatchRecompute, CompanyChangesTheBitsOfTheFastModeOnly) {
  const Checkpoint checkpoint = test::open_golden_model("gemma3-tiny");
  const RecomputePlan plan{
      .prompt = {2, 3, 5, 7}, .decode_calls = 3, .chunks = {1}, .threads = {1}, .batches = {1, 8, 9}};
  const RunResult exact = run_engine(checkpoint, plan, NumericMode::exact, DType::f32),
                  fast = run_engine(checkpoint, plan, NumericMode::fast, DType::f32);
  EXPECT_TRUE(exact.same()) << exact.verdict();
  const RunResult alone = run_engine(checkpoint, {.prompt = {2, 3, 5, 7}, .decode_calls = 3, .threads = {1}},
                                     NumericMode::fast, DType::f32);
  EXPECT_NE(alone.verdict().find("only calls of 9 rows and more"), std::string::npos) << alone.verdict();
  ASSERT_EQ(fast.recomputations.size(), 3u);
  EXPECT_TRUE(fast.recomputations[0].same(7));
  EXPECT_TRUE(fast.recomputations[1].same(7)) << fast.recomputations[1].name();
  EXPECT_FALSE(fast.recomputations[2].same(7)) << fast.recomputations[2].name();
  EXPECT_EQ(fast.recomputations[2].name(), "decode of single tokens, batch of 9");
}

// ---- what the comparison sees: a subject of two layers whose numbers are known

ModelSpec two_layers() {
  ModelSpec spec = test::open_golden_model("llama-tiny").spec;
  spec.layers.resize(2);
  spec.vocab_size = 4;
  spec.d_model = 2;
  for (LayerSpec& layer : spec.layers) {
    layer.attention->n_kv_heads = 1;
    layer.attention->head_dim = 2;
  }
  spec.layers[0].attention->kv_owner = 0;
  spec.layers[1].attention->kv_owner = 1;
  return spec;
}

// Fills the record with numbers of the position; `damage` may change what calls of several tokens show.
class Script : public Subject {
 public:
  using Damage = std::function<void(Record&)>;
  explicit Script(Damage damage) : damage_(std::move(damage)) {}
  void begin(int64_t) override {}
  void feed(std::span<const int32_t> tokens, int64_t first, Record& record) override {
    for (int64_t r = first; r < first + static_cast<int64_t>(tokens.size()); ++r) {
      const auto x = static_cast<double>(r + 1);
      for (auto& [layer, kv] : record.kv)
        for (size_t i = 0; i < 2; ++i) kv.k[2 * r + i] = kv.v[2 * r + i] = x;
      for (auto& hidden : record.hidden) hidden[2 * r] = hidden[2 * r + 1] = x;
      for (int64_t layer = 0; layer < 2; ++layer)
        for (int stage = 0; stage < static_cast<int>(stage_names().size()); ++stage) {
          auto& hashes = record.stages[{layer, stage}];
          hashes.resize(static_cast<size_t>(record.positions));
          hashes[static_cast<size_t>(r)] = 1;
        }
      if (r < record.first_logits) continue;
      const double logits[] = {1, 22.375, 22.25, 0};
      std::copy(logits, logits + 4, record.logits.begin() + 4 * (r - record.first_logits));
    }
    ++record.calls;
    if (damage_ && tokens.size() == 6) damage_(record);
  }

 private:
  Damage damage_;
};

RunResult run_script(const Script::Damage& damage, DType stored = DType::bf16) {
  const RecomputePlan plan{.prompt = {0, 1, 2}, .decode_calls = 3, .chunks = {1, 0}, .threads = {1}};
  const RunFacts facts{"exact", "engine", "", stored, stored, DType::bf16, true};
  return recompute(
      two_layers(), plan, facts, [&](int) { return std::make_unique<Script>(damage); }, no_truth,
      no_progress);
}

TEST(RecomputeComparison, AnUndamagedScriptPasses) {
  const RunResult run = run_script({});
  EXPECT_TRUE(run.passed()) << run.verdict();
  EXPECT_EQ(run.tokens, (Tokens{0, 1, 2, 1, 1, 1}));
  ASSERT_EQ(run.generated.size(), 4u);
  EXPECT_EQ(run.generated[0].second_id, 2);
  EXPECT_EQ(run.generated[0].gap_ulps, 1u);
  EXPECT_EQ(run.generated[0].gap(), 0.125);
}

TEST(RecomputeComparison, OneElementIsFoundWithItsUlpsLayerAndPosition) {
  const RunResult run = run_script([](Record& record) {
    record.kv.at(1).v[2 * 4 + 1] += 2 * 0x1p-5;  // 5 is stored in steps of 2^-5
    record.stages.at({1, 7})[4] = 2;
    record.stages.at({1, 4})[5] = 2;
  });
  EXPECT_FALSE(run.passed());
  EXPECT_EQ(run.verdict(),
            "exact: down to 97.9 % of 48 K/V elements have the same bits (one prefill, 1 thread); 1 of 2 "
            "recomputations the same in every bit; 0 of 4 tokens flip; FAILED: the same bits were promised");
  const Recomputation& r = run.recomputations[1];
  EXPECT_EQ(r.kv().elements, 48);
  EXPECT_EQ(r.kv().equal, 47);
  EXPECT_EQ(r.prompt().equal, r.prompt().elements);
  EXPECT_EQ(r.decode().equal, 23);
  EXPECT_EQ(r.kv().max_ulps, 2u);
  EXPECT_EQ(r.kv().histogram, (std::array<int64_t, 4>{47, 0, 1, 0}));
  EXPECT_EQ(r.kv().max_abs_k, 0);
  EXPECT_EQ(r.kv().max_abs_v, 0x1p-4);
  EXPECT_EQ(r.layers[0].all().equal, 24);
  EXPECT_EQ(r.layers[1].all().equal, 23);
  EXPECT_EQ(r.equal_map[1][4], 75);
  EXPECT_EQ(r.ulps_map[1][4], 2u);
  EXPECT_EQ(r.equal_map[0][4], 100);
  ASSERT_TRUE(r.first) << "the earlier operation, though at a later position";
  EXPECT_EQ(r.first->layer, 1);
  EXPECT_EQ(r.first->op, stage_names()[4]);
  EXPECT_EQ(r.first->position, 5);
}

TEST(RecomputeComparison, EachKindOfDamageFailsAlone) {
  const std::pair<const char*, Script::Damage> kinds[] = {
      {"a hidden state", [](Record& r) { r.hidden[1][0] = 7; }},
      {"the sign of a zero", [](Record& r) { r.final_norm[3] = -0.0; }},
      {"a row of logits", [](Record& r) { r.logits_hash[1] ^= 1; }},
      {"an operation",
       [](Record& r) {
         r.stages.at({0, 0})[0] ^= 1;
       }},
      {"an operation that is not there", [](Record& r) {
         r.stages.erase({1, 2});
       }}};
  for (const auto& [name, damage] : kinds) EXPECT_FALSE(run_script(damage).passed()) << name;
}

TEST(RecomputeComparison, AFlipIsToldWithBothCandidatesAndGaps) {
  const RunResult run = run_script([](Record& record) { record.logits[4 * 1 + 2] = 22.5; });
  const Recomputation& r = run.recomputations[1];
  ASSERT_EQ(r.flips.size(), 1u);
  EXPECT_EQ(r.flips[0].index, 2);
  EXPECT_EQ(r.flips[0].position, 3);
  EXPECT_EQ(r.flips[0].cached.id, 1);
  EXPECT_EQ(r.flips[0].recomputed.id, 2);
  EXPECT_EQ(r.flips[0].recomputed.second_id, 1);
  EXPECT_EQ(r.flips[0].recomputed.gap(), 0.125);
  EXPECT_EQ(r.flips[0].recomputed.gap_ulps, 1u);
  EXPECT_EQ(r.max_logit_difference, 0.25);
}

TEST(RecomputeComparison, StepsOfTheScaleAreTheUlpsOfQ8) {
  const RunResult run = run_script([](Record& r) { r.kv.at(0).k[2 * 4] = 5 - 3 * 5.0 / 127; }, DType::i8);
  EXPECT_EQ(run.recomputations[1].kv().max_ulps, 3u);
}

TEST(RecomputeJson, HoldsWhatTheResultHolds) {
  const Checkpoint checkpoint = test::open_golden_model("gemma4-e2b-tiny");
  Tokens prompt = test::tokens_of(test::golden_case("gemma4-e2b-tiny"));
  prompt.resize(8);
  const RecomputePlan plan{.prompt = prompt, .decode_calls = 4, .chunks = {1, 0}, .threads = {1}};
  RecomputeReport report{.prompt_tokens = 8, .decode_calls = 4};
  for (int64_t i = 0; i < checkpoint.spec.n_layers(); ++i)
    if (checkpoint.spec.layers[static_cast<size_t>(i)].owns_kv(i)) report.owner_layers.push_back(i);
  report.runs.push_back(run_engine(checkpoint, plan, NumericMode::fast));
  const boost::json::object out = recompute_json(report, {}, [](int32_t id) { return std::to_string(id); });
  EXPECT_EQ(out.at("schema").as_string(), "lapidary.kv.recompute");
  EXPECT_TRUE(out.at("passed").as_bool());
  const boost::json::object& run = out.at("runs").at(0).as_object();
  EXPECT_EQ(run.at("generated").as_array().size(), 5u);
  EXPECT_EQ(run.at("tokens").as_array().size(), 12u);
  EXPECT_EQ(run.at("pieces").at(11).as_string(), std::to_string(run.at("tokens").at(11).as_int64()));
  const boost::json::object& prefill = run.at("recomputations").at(1).as_object();
  EXPECT_EQ(prefill.at("name").as_string(), "one prefill");
  const size_t owners = report.owner_layers.size();
  ASSERT_EQ(prefill.at("map").at("equal_percent").as_array().size(), owners);
  EXPECT_EQ(prefill.at("map").at("max_ulps").at(owners - 1).as_array().size(), 12u);
  EXPECT_EQ(prefill.at("hidden_layers").as_array().size(), checkpoint.spec.layers.size());
  int64_t equal = 0;
  for (const auto& layer : prefill.at("layers").as_array()) equal += layer.at("kv").at("equal").as_int64();
  EXPECT_EQ(equal, prefill.at("kv").at("equal").as_int64());
  EXPECT_EQ(prefill.at("kv").at("elements").as_int64(), out.at("kv_elements").as_int64());
  EXPECT_FALSE(prefill.at("first_divergence").is_null());
  EXPECT_TRUE(run.at("recomputations").at(0).at("first_divergence").is_null());
  EXPECT_TRUE(prefill.at("error").is_null());
}

// ---- the reference: a test of its own where libtorch is (CMakeLists.txt)

class ReferenceRecompute : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_EQ(why_no_reference(), ""); }
  RunResult run(ReferenceType type, DType stored) const {
    const Checkpoint checkpoint = test::open_golden_model(GetParam());
    Tokens prompt = test::tokens_of(test::golden_case(GetParam()));
    prompt.resize(12);
    const RecomputePlan plan{.prompt = prompt, .decode_calls = 4, .chunks = {1, 0}, .threads = {1}};
    const auto open = [&](ReferenceType t) {
      return reference_subject(
          open_reference(checkpoint.spec, *checkpoint.tensors, {.type = t, .threads = 1}));
    };
    std::optional<Record> truth;
    return recompute(
        checkpoint.spec, plan, {"reference", "reference", "", stored, stored, stored, false},
        [&](int) { return open(type); },
        [&](std::span<const int32_t> tokens, int64_t first) {
          truth = record_run(*open(ReferenceType::f64), checkpoint.spec, tokens, {}, first);
          return &*truth;
        },
        no_progress);
  }
};

TEST_P(ReferenceRecompute, InFloatEveryTokenIsTheSameAndTheDifferenceIsSmall) {
  const RunResult result = run(ReferenceType::f32, DType::f32);
  for (const Recomputation& r : result.recomputations) {
    EXPECT_TRUE(r.flips.empty());
    EXPECT_LT(std::max(r.kv().max_abs_k, r.kv().max_abs_v), 1e-4);
    ASSERT_TRUE(r.error);
    EXPECT_LT(r.error->max_logits, 1e-3);
  }
  EXPECT_GT(result.cached_error->rms_kv, 0);
}

TEST_P(ReferenceRecompute, InBf16EveryRunIsFartherFromTheTruth) {
  const RunResult f32 = run(ReferenceType::f32, DType::f32), bf16 = run(ReferenceType::bf16, DType::bf16);
  EXPECT_GT(bf16.cached_error->rms_kv, 100 * f32.cached_error->rms_kv);
  for (const Recomputation& r : bf16.recomputations)
    EXPECT_GT(r.error->rms_kv, 100 * f32.cached_error->rms_kv);
  for (const Choice& choice : bf16.generated)
    EXPECT_EQ(bf16_to_float(float_to_bf16(static_cast<float>(choice.logit))), choice.logit);
}
INSTANTIATE_TEST_SUITE_P(Goldens, ReferenceRecompute,
                         testing::Values("llama-tiny", "gemma3-tiny", "gemma4-e2b-tiny"),
                         test::name_of_model);

// What a common stack does, on real weights: bf16 throughout, prefill beside decode.
TEST(ReferenceRecomputeReal, InBf16SmolLM2sDeeperLayersDiffer) {
  const Checkpoint checkpoint = open_checkpoint(test::cached_model("smollm2-135m-instruct"));
  const RecomputePlan plan{
      .prompt = {504, 3575, 282, 4649, 314}, .decode_calls = 10, .chunks = {0}, .threads = {1}};
  const RunResult run = recompute(
      checkpoint.spec, plan, {"reference", "reference", "", DType::bf16, DType::bf16, DType::bf16, false},
      [&](int) {
        return reference_subject(open_reference(checkpoint.spec, *checkpoint.tensors,
                                                {.type = ReferenceType::bf16, .threads = 1}));
      },
      no_truth, no_progress);
  const std::vector<LayerDifference>& layers = run.recomputations[0].layers;
  EXPECT_EQ(layers.front().all().equal, layers.front().all().elements);
  EXPECT_LT(layers.back().all().equal, layers.back().all().elements / 2);
}

// ---- the real models

class RealRecompute : public testing::TestWithParam<const char*> {};

TEST_P(RealRecompute, EveryBitIsTheSameInTheModeThatShips) {
  const Checkpoint checkpoint = open_checkpoint(test::cached_model(GetParam()));
  const RecomputePlan plan{.prompt = {504, 3575, 282, 4649, 314}, .decode_calls = 10};
  const RunResult run = run_engine(checkpoint, plan, NumericMode::exact);
  EXPECT_TRUE(run.same()) << run.verdict();
  EXPECT_EQ(run.recomputations.size(), 6u);
  EXPECT_EQ(run.verdict().find("exact: 100.0 % of "), 0u) << run.verdict();
}
TEST_P(RealRecompute, TheFastModeDiffersMoreInEveryDeeperThirdOfTheLayers) {
  const Checkpoint checkpoint = open_checkpoint(test::cached_model(GetParam()));
  const RecomputePlan plan{
      .prompt = {504, 3575, 282, 4649, 314}, .decode_calls = 10, .chunks = {0}, .threads = {1}};
  const RunResult run =
      run_engine(checkpoint, plan, NumericMode::fast, DType::f16, Arithmetic::f32);  // the order alone
  const std::vector<LayerDifference>& layers = run.recomputations[0].layers;
  const auto share = [&](size_t from, size_t to) {
    KvDifference sum;
    for (size_t i = from; i < to; ++i) sum.join(layers[i].all());
    return static_cast<double>(sum.equal) / static_cast<double>(sum.elements);
  };
  const size_t n = layers.size();
  EXPECT_LT(share(0, n / 3), 1);
  EXPECT_LT(share(2 * n / 3, n), share(0, n / 3));
}
INSTANTIATE_TEST_SUITE_P(RealModels, RealRecompute, testing::Values("smollm2-135m-instruct", "gemma3-270m"),
                         [](const auto& model) { return test::test_name(model.param); });

}  // namespace
}  // namespace lapidary::kvlab
