// The planner's numbers: those that are known of real models, and those that follow from a rule.
#include "kvlab/plan/plan.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "formats/checkpoint.h"
#include "kernels/kv_layout.h"
#include "kvlab/plan/numbers.h"
#include "kvlab/plan/types.h"
#include "spec/footprint.h"
#include "support/compare.h"
#include "support/golden_models.h"

namespace lapidary::test {
namespace {

using namespace kvlab;

constexpr int64_t kMiB = int64_t{1} << 20;

ModelSpec config(const std::string& name) {
  return open_checkpoint(data_path("configs/" + name + "/config.json")).spec;
}

PlanOptions options(std::vector<int64_t> lengths) {
  PlanOptions out;
  out.types = DType::bf16;
  out.lengths = std::move(lengths);
  return out;
}

Plan planned(const ModelSpec& spec, const PlanOptions& o, DType weights = DType::bf16) {
  return make_plan(spec, assumed_weights(spec, weights, o.sequences, o.ranks), o);
}

int64_t view_of(const PlanLine& line, View view) {
  return line.views.at(static_cast<size_t>(view));
}
int64_t formula_of(const PlanLine& line, Formula formula) {
  return line.formulas.at(static_cast<size_t>(formula));
}

struct Known {
  std::string name;
  int64_t global, sliding, read_global, read_sliding;
  int64_t mib_4k, mib_32k, mib_128k, mib_128k_no_window;
};

class KnownPlan : public testing::TestWithParam<Known> {};

TEST_P(KnownPlan, GivesTheKnownNumbers) {
  const Known& known = GetParam();
  const Plan plan = planned(config(known.name), options({4096, 32768, 131072}));
  EXPECT_EQ(plan.rates.stored_global, known.global);
  EXPECT_EQ(plan.rates.stored_sliding, known.sliding);
  EXPECT_EQ(plan.rates.read_global, known.read_global);
  EXPECT_EQ(plan.rates.read_sliding, known.read_sliding);
  EXPECT_EQ(plan.lines[0].needed_bytes, known.mib_4k * kMiB);
  EXPECT_EQ(plan.lines[1].needed_bytes, known.mib_32k * kMiB);
  EXPECT_EQ(plan.lines[2].needed_bytes, known.mib_128k * kMiB);
  EXPECT_EQ(view_of(plan.lines[2], View::no_window), known.mib_128k_no_window * kMiB);
  EXPECT_EQ(formula_of(plan.lines[2], Formula::every_layer_global), known.mib_128k_no_window * kMiB);
}

// 12B: 320 MiB of windows and 16 KiB a token; 26B: 200 MiB and 20 KiB.
INSTANTIATE_TEST_SUITE_P(
    Gemma4, KnownPlan,
    testing::Values(Known{"e2b", 6'144, 12'288, 14'336, 28'672, 30, 198, 774, 2'304},
                    Known{"e4b", 16'384, 40'960, 28'672, 71'680, 84, 532, 2'068, 7'168},
                    Known{"12b", 16'384, 327'680, 16'384, 327'680, 384, 832, 2'368, 43'008},
                    Known{"26b-a4b", 20'480, 204'800, 20'480, 204'800, 280, 840, 2'760, 28'160},
                    Known{"31b", 81'920, 819'200, 81'920, 819'200, 1'120, 3'360, 11'040, 112'640}),
    [](const auto& param) { return test_name("m" + param.param.name); });

struct KnownWeights {
  std::string name;
  int64_t resident, touched;  // elements of matrices and tables
};

TEST(Plan, WeightsAreThoseThatAreKnown) {
  for (const KnownWeights& known : {KnownWeights{"e2b", 4'628'283'392, 2'279'482'112},
                                    {"e4b", 7'462'453'248, 4'643'891'712},
                                    {"12b", 11'906'580'480, 11'906'580'480},
                                    {"26b-a4b", 25'232'441'344, 3'821'830'144},
                                    {"31b", 30'696'013'824, 30'696'013'824}}) {
    const ModelSpec spec = config(known.name);
    const PlanWeights weights = assumed_weights(spec, DType::bf16, 1, 1);
    const WeightSize& small = weights.parts[static_cast<size_t>(WeightPart::small)];
    EXPECT_EQ(weights.all.resident_elements - small.resident_elements, known.resident) << known.name;
    EXPECT_EQ(weights.all.touched_elements_per_token - small.touched_elements_per_token, known.touched)
        << known.name;
    EXPECT_EQ(weights.all.resident_bytes, 2 * weights.all.resident_elements) << known.name;
    EXPECT_EQ(weights.all.touched_bytes_per_token, 2 * weights.all.touched_elements_per_token) << known.name;
    EXPECT_EQ(weights.touched_bytes_per_step, weights.all.touched_bytes_per_token) << known.name;
    EXPECT_EQ(weights.all.resident_elements, count_parameters(spec).resident) << known.name;
  }
}

// Of the tables of E2B, 2.35 G elements, a token reads one row.
TEST(Plan, OneRowOfTheTablesIsTouched) {
  const PlanWeights weights = assumed_weights(config("e2b"), DType::bf16, 1, 1);
  const WeightSize& ple = weights.parts[static_cast<size_t>(WeightPart::per_layer_embeddings)];
  EXPECT_EQ(ple.resident_elements - ple.touched_elements_per_token, (262'144 - 1) * 8'960LL);
  // The head is the embedding: all of it is read, once.
  const WeightSize& embedding = weights.parts[static_cast<size_t>(WeightPart::embedding)];
  EXPECT_EQ(embedding.touched_bytes_per_token, embedding.resident_bytes);
}

TEST(Plan, AStepOfManySequencesReadsMoreRowsAndExperts) {
  const ModelSpec spec = config("26b-a4b");
  const PlanWeights one = assumed_weights(spec, DType::bf16, 1, 1),
                    two = assumed_weights(spec, DType::bf16, 2, 1),
                    many = assumed_weights(spec, DType::bf16, 1000, 1);
  const int64_t an_expert = 3 * 704 * 2816 + 1;  // with its scale
  EXPECT_EQ(two.touched_bytes_per_step - one.touched_bytes_per_step, 2 * 30 * 8 * an_expert);
  EXPECT_EQ(many.touched_bytes_per_step, many.all.resident_bytes) << "all experts, and the tied head";
}

TEST(Plan, BlockFormatsOfWeightsCountTheirScales) {
  const ModelSpec spec = config("smollm2-135m");
  const ParameterCount count = count_parameters(spec);
  const int64_t vectors = 4 * (count.resident - count.matrices_resident);  // f32
  const PlanWeights q8 = assumed_weights(spec, DType::q8_0, 1, 1),
                    q4 = assumed_weights(spec, DType::q4_0, 1, 1);
  EXPECT_EQ(q8.all.resident_bytes, count.matrices_resident / 32 * 34 + vectors);
  EXPECT_EQ(q4.all.resident_bytes, count.matrices_resident / 32 * 18 + vectors);
  EXPECT_EQ(q8.tensors_in_f16, 0);
  // Rows of 576 are no whole blocks of 256; those of `down`, 1536 wide, are.
  const PlanWeights q4_k = assumed_weights(spec, DType::q4_k, 1, 1);
  EXPECT_EQ(q4_k.tensors_in_f16, 1 + 30 * 6);
  EXPECT_EQ(q4_k.resident_by_dtype.at("q4_k"), 30 * 576 * (1536 / 256) * 144);
}

TEST(Plan, WeightsOfAFileAreItsBytes) {
  for (const std::string name : {"gemma4-e2b-wide-Q4_K_M", "gemma4-26b-tiny-Q8_0", "llama-tiny-Q5_1"}) {
    const Checkpoint checkpoint = open_golden_gguf(name);
    const auto stored = [&](const Slot& slot) -> std::optional<StoredTensor> {
      if (slot.kind == TensorKind::output_head && checkpoint.spec.tied_head) return {};
      const TensorData tensor = checkpoint.tensors->read(slot);
      return StoredTensor{tensor.view.dtype, static_cast<int64_t>(tensor.view.bytes.size()), ""};
    };
    const PlanWeights weights = file_weights(checkpoint.spec, stored, 1, 1);
    EXPECT_TRUE(weights.from_file);
    int64_t bytes = 0;
    for (const auto& [dtype, n] : checkpoint.dtype_bytes) {
      EXPECT_EQ(weights.resident_by_dtype.at(dtype), n) << name << " " << dtype;
      bytes += n;
    }
    EXPECT_EQ(weights.all.resident_bytes, bytes) << name;
    EXPECT_LE(weights.all.touched_bytes_per_token, bytes) << name;
  }
}

// A tied head that the file holds a second time, in another form: then of the table one row is read.
TEST(Plan, AHeadOfItsOwnLeavesTheTableOneRow) {
  const ModelSpec spec = config("smollm2-135m");
  const auto stored = [&](const Slot& slot) {
    return std::optional<StoredTensor>({DType::q8_0,
                                        slot.kind == TensorKind::output_head       ? 5'000
                                        : slot.kind == TensorKind::token_embedding ? 49'152 * 612
                                                                                   : 0,
                                        slot.kind == TensorKind::output_head ? "packed " : ""});
  };
  const PlanWeights weights = file_weights(spec, stored, 1, 1);
  EXPECT_EQ(weights.all.resident_bytes, 49'152 * 612 + 5'000);
  EXPECT_EQ(weights.all.touched_bytes_per_token, 612 + 5'000);
  EXPECT_EQ(weights.resident_by_dtype.at("packed q8_0"), 5'000);
}

TEST(Plan, SmolLm2CrossesItsWeightsAt11677) {
  const Plan plan = planned(config("smollm2-135m"), options({8192}));
  EXPECT_EQ(plan.weights.all.resident_bytes, 269'030'016);
  EXPECT_EQ(plan.rates.stored_global, 23'040);
  EXPECT_EQ(plan.crossover.stored, 11'677);
  EXPECT_EQ(plan.crossover.read, 11'677);
  EXPECT_EQ(formula_of(plan.lines[0], Formula::every_query_head), 69'120 * 8192);
  EXPECT_EQ(formula_of(plan.lines[0], Formula::flat), plan.lines[0].needed_bytes);
  EXPECT_EQ(formula_of(plan.lines[0], Formula::hidden_over_heads), plan.lines[0].needed_bytes);
}

TEST(Plan, MoreSequencesCrossEarlier) {
  PlanOptions o = options({100});
  o.sequences = 10;
  const Plan plan = planned(config("smollm2-135m"), o);
  EXPECT_EQ(plan.crossover.stored, 1'168);  // ceil(269030016 / 230400)
  EXPECT_EQ(plan.lines[0].needed_bytes, 10 * 100 * 23'040);
  EXPECT_EQ(plan.lines[0].read_bytes, 10 * 100 * 23'040);
}

TEST(Plan, Llama3Of70BillionNeeds34GiBForTheVendorsContext) {
  for (const std::string name : {"llama-3-70b", "llama-3.1-70b"}) {
    PlanOptions o = options({112'000});
    o.max_position = 131'072;
    const Plan plan = planned(config(name), o);
    EXPECT_EQ(plan.rates.stored_global, 327'680) << name;
    EXPECT_EQ(plan.lines[0].needed_bytes, 36'700'160'000) << name;  // 34.2 GiB
  }
  EXPECT_EQ(config("llama-3.1-70b").max_position, 131'072);
  expect_error([] { planned(config("llama-3-70b"), options({112'000})); }, ErrorCode::usage,
               "length: expected 1 to 8192 positions, what the model was made for, got 112000");
}

// 36 layers, 8 KV heads of 64, every other one with a window of 128.
TEST(Plan, GptOssHasAllItsLayersBelowTheWindow) {
  ModelSpec spec;
  spec.vocab_size = 201'088;
  spec.d_model = 2'880;
  spec.max_position = 131'072;
  spec.tied_head = false;
  for (int64_t i = 0; i < 36; ++i) {
    LayerSpec layer;
    AttentionSpec& a = layer.attention.emplace();
    a.n_heads = 64;
    a.n_kv_heads = 8;
    a.head_dim = 64;
    a.window = i % 2 == 0 ? 128 : 0;
    a.kv_owner = i;
    layer.ffn = FfnSpec{2'880, Activation::silu, {}};
    spec.layers.push_back(layer);
  }
  const Plan plan = planned(spec, options({128, 131'072}));
  EXPECT_EQ(plan.rates.stored_global + plan.rates.stored_sliding, 73'728);
  EXPECT_EQ(plan.rates.stored_global, 36'864);
  EXPECT_EQ(plan.lines[0].needed_bytes, 128 * 73'728);
  EXPECT_EQ(plan.lines[1].needed_bytes, 128 * 36'864 + 131'072LL * 36'864);
  EXPECT_EQ(formula_of(plan.lines[0], Formula::hidden_over_heads), 128 * 36LL * 2 * 8 * 45 * 2);
}

TEST(Plan, E2bPastTheWindowStoresLessThanItReads) {
  const Plan plan = planned(config("e2b"), options({512, 513}));
  EXPECT_EQ(plan.lines[1].needed_bytes - plan.lines[0].needed_bytes, 6'144);
  EXPECT_EQ(plan.lines[1].read_bytes - plan.lines[0].read_bytes, 14'336);
  EXPECT_EQ(view_of(plan.lines[0], View::no_sharing), 512 * 43'008);
  EXPECT_EQ(formula_of(plan.lines[0], Formula::hidden_over_heads), 512 * 3LL * (12 + 3) * 256);
  EXPECT_EQ(formula_of(plan.lines[0], Formula::flat), 512 * 35LL * 1'024);
  EXPECT_NEAR(plan.lines[0].factor(view_of(plan.lines[0], View::no_sharing)), 43'008.0 / 18'432, 1e-12);
}

// The figure that two tools agree on for the wrong reason: every layer priced as a sliding one.
TEST(Plan, UnifiedPagesOf31bPriceEveryLayerAsTheWidest) {
  const Plan plan = planned(config("31b"), options({1024, 131'072}));
  EXPECT_EQ(view_of(plan.lines[0], View::unified_pages), 1024LL * 983'040);
  EXPECT_EQ(plan.lines[0].needed_bytes, 1024LL * 901'120);
  EXPECT_EQ(view_of(plan.lines[1], View::unified_pages), 50LL * 1024 * 16'384 + 10LL * 131'072 * 16'384);
}

TEST(Plan, GlobalLayersOf12bAreReadInTwoPasses) {
  const Plan plan = planned(config("12b"), options({2048}));
  EXPECT_EQ(plan.rates.engine_read_global, 2 * 16'384) << "16 query heads share one KV head";
  EXPECT_EQ(plan.rates.engine_read_sliding, 327'680);
  EXPECT_EQ(plan.lines[0].engine_read_bytes, 2048LL * 32'768 + 1024LL * 327'680);
}

TEST(Plan, KeysAndValuesApartWithTheirBlocks) {
  const ModelSpec spec = config("smollm2-135m");
  const auto rate = [&](const char* types) {
    PlanOptions o = options({64});
    o.types = plan_kv_types_from_name(types, "--kv-dtype");
    const Plan plan = planned(spec, o);
    EXPECT_EQ(view_of(plan.lines[0], View::this_engine) >= 0, runs_here(o.types)) << types;
    return plan.rates.stored_global;
  };
  EXPECT_EQ(rate("f32"), 46'080);
  EXPECT_EQ(rate("q8"), 30 * 3 * 2 * (64 + 4));
  EXPECT_EQ(rate("k=q8,v=f16"), 30 * 3 * (68 + 128));
  EXPECT_EQ(rate("q8_0"), 30 * 3 * 2 * 68);
  EXPECT_EQ(rate("k=q8_0,v=q4_0"), 30 * 3 * (68 + 36));
  EXPECT_EQ(rate("v=q4_0,k=q8_0"), 30 * 3 * (68 + 36));
  EXPECT_EQ(rate("q5_0"), 30 * 3 * 2 * 44);
  EXPECT_EQ(rate("q5_1"), 30 * 3 * 2 * 48);
  EXPECT_EQ(rate("q4_1"), 30 * 3 * 2 * 40);
  EXPECT_EQ(plan_row_bytes(DType::q4_0, 33), 36) << "filled up to whole blocks";
  for (const char* wrong : {"", "q3", "k=f16", "k=f16,k=f16", "f16,v=q8", "k=q8_0,v=q4_k", "q4_k"})
    expect_error([&] { plan_kv_types_from_name(wrong, "--kv-dtype"); }, ErrorCode::usage,
                 "--kv-dtype: expected f32, f16, bf16, q8", wrong);
}

// ---- pages

TEST(Plan, PagesOfThisEngineAreWholeAndAsLargeAsThePools) {
  const Plan plan = planned(config("e2b"), options({1, 32, 33, 544}));
  const auto pages = [&](size_t i) { return view_of(plan.lines[i], View::this_engine); };
  EXPECT_EQ(pages(0), 32 * 18'432);
  EXPECT_EQ(pages(1), 32 * 18'432);
  EXPECT_EQ(pages(2), 64 * 18'432);
  // 544 - 511 = 33 positions are out of sight, a page of 32 has gone.
  EXPECT_EQ(pages(3), 544 * 6'144 + 512 * 12'288);
  EXPECT_EQ(plan.lines[3].pages, 3 * 17 + 12 * 16);
}

TEST(PageRule, TheMostIsWhatStepsReachOnTheWay) {
  for (const int64_t window : {0, 1, 8, 31, 32, 33, 100, 512})
    for (const int64_t behind : {0, 1, 40}) {
      const PageRule rule{behind};
      PlanLayer layer;
      layer.window = window;
      int64_t most = 0;
      for (int64_t length = 1; length <= 700; ++length) {
        const int64_t during =
            ceil_div(length, kernels::kBlock) - rule.first_kept(layer, length - 1) / kernels::kBlock;
        most = std::max({most, during, rule.pages_held(layer, length)});
        ASSERT_EQ(rule.pages_most(layer, length), most) << window << " " << behind << " " << length;
        ASSERT_LE(rule.first_kept(layer, length),
                  window == 0 ? 0 : std::max<int64_t>(0, length - window + 1));
      }
    }
}

// ---- ranks

TEST(Ranks, GlobalLayersOf12bAreOnBothRanksOfTwo) {
  PlanOptions o = options({1024, 32'768});
  o.ranks = 2;
  const Plan plan = planned(config("12b"), o);
  ASSERT_TRUE(plan.ranks);
  EXPECT_EQ(plan.ranks->replicated, (std::vector<int64_t>{5, 11, 17, 23, 29, 35, 41, 47}));
  EXPECT_EQ(plan.ranks->lines[0].needed_bytes, 1024LL * (163'840 + 16'384));
  EXPECT_EQ(plan.ranks->lines[1].needed_bytes, 1024LL * 163'840 + 32'768LL * 16'384);
  EXPECT_EQ(plan.ranks->layers[0].n_kv_heads, 4);
  EXPECT_EQ(plan.ranks->layers[5].n_kv_heads, 1);
}

TEST(Ranks, HeadsAreSplitGivenToSeveralOrKeptWhole) {
  EXPECT_EQ(rank_kv_heads(8, 2), 4);
  EXPECT_EQ(rank_kv_heads(8, 8), 1);
  EXPECT_EQ(rank_kv_heads(8, 16), 1);
  EXPECT_EQ(rank_kv_heads(1, 4), 1);
  EXPECT_EQ(rank_kv_heads(3, 2), 3);
  EXPECT_EQ(rank_kv_heads(4, 6), 4);
}

TEST(Ranks, WeightsAreSplitButForTablesAndVectors) {
  const ModelSpec spec = config("llama-3-70b");
  const PlanWeights weights = assumed_weights(spec, DType::bf16, 1, 8);
  const auto part = [&](WeightPart p) { return weights.parts[static_cast<size_t>(p)].resident_bytes; };
  EXPECT_EQ(weights.rank_bytes, part(WeightPart::embedding) + part(WeightPart::small) +
                                    (part(WeightPart::attention) + part(WeightPart::feed_forward)) / 8);
  // With 16 ranks a rank has one of the eight heads still.
  const PlanWeights sixteen = assumed_weights(spec, DType::bf16, 1, 16);
  const int64_t kv = 80LL * 2 * 8 * 128 * 8192 * 2;
  EXPECT_EQ(sixteen.rank_bytes, part(WeightPart::embedding) + part(WeightPart::small) + kv / 8 +
                                    (part(WeightPart::attention) - kv + part(WeightPart::feed_forward)) / 16);
}

TEST(Ranks, ThatDoNotDivideTheQueryHeadsAreRefused) {
  PlanOptions o = options({128});
  o.ranks = 2;
  expect_error([&] { planned(config("smollm2-135m"), o); }, ErrorCode::usage,
               "--tp 2: expected a number that divides the query heads, and layer 0 has 9");
  o.ranks = 3;
  EXPECT_EQ(planned(config("smollm2-135m"), o).ranks->lines[0].needed_bytes, 128 * 23'040 / 3);
}

// ---- budget

PlanOptions with_budget(std::vector<int64_t> lengths, int64_t bytes) {
  PlanOptions o = options(std::move(lengths));
  o.budget_bytes = bytes;
  return o;
}

const BudgetView& solved(const Plan& plan, View view) {
  return *std::find_if(plan.budget->views.begin(), plan.budget->views.end(),
                       [&](const BudgetView& v) { return v.view == view; });
}

TEST(Budget, AnswersToThePosition) {
  const ModelSpec spec = config("llama-3-70b");
  const int64_t weights = assumed_weights(spec, DType::bf16, 1, 1).all.resident_bytes;
  const int64_t budget = weights + 5000 * 327'680;
  const Plan exact = planned(spec, with_budget({1000}, budget)),
             short_of = planned(spec, with_budget({1000}, budget - 1));
  EXPECT_EQ(solved(exact, View::needed).longest, 5000);
  EXPECT_EQ(solved(exact, View::needed).by_memory, 5000);
  EXPECT_EQ(solved(short_of, View::needed).longest, 4999);
  EXPECT_EQ(solved(exact, View::this_engine).longest, 4992) << "whole pages";
  EXPECT_EQ(solved(exact, View::needed).most_sequences[0], 5);
  EXPECT_EQ(solved(short_of, View::needed).most_sequences[0], 4);
  EXPECT_EQ(solved(exact, View::this_engine).most_sequences[0], 4) << "1000 positions take 1024";
}

TEST(Budget, IsTheInverseOfThePlan) {
  for (const char* name : {"e2b", "31b", "smollm2-135m"}) {
    const ModelSpec spec = config(name);
    const int64_t weights = assumed_weights(spec, DType::bf16, 1, 1).all.resident_bytes;
    const std::vector<PlanLayer> layers = plan_layers(spec, DType::bf16);
    for (const int64_t left : {3'000'000LL * 32, 900'000'000LL, 1'234'567'890LL}) {
      PlanOptions o = with_budget({1024}, weights + left);
      o.sequences = 3;
      const Plan plan = planned(spec, o);
      for (const BudgetView& view : plan.budget->views) {
        ASSERT_TRUE(view.by_memory);
        const int64_t longest = *view.by_memory;
        EXPECT_LE(3 * view_bytes_most(view.view, layers, {}, longest), left) << name;
        EXPECT_GT(3 * view_bytes_most(view.view, layers, {}, longest + 1), left) << name;
        EXPECT_EQ(view.longest, std::min(longest, spec.max_position)) << name;
        const int64_t n = *view.most_sequences[0], one = view_bytes_most(view.view, layers, {}, 1024);
        EXPECT_LE(n * one, left) << name;
        EXPECT_GT((n + 1) * one, left) << name;
      }
    }
  }
}

TEST(Budget, ThatIsTooSmallSaysWhatIsMissing) {
  const ModelSpec spec = config("smollm2-135m");
  expect_error([&] { planned(spec, with_budget({64}, 269'030'015)); }, ErrorCode::limit,
               "budget: 269030015 bytes do not hold the weights: they take 269030016 bytes, 1 more");
  const int64_t page = 32 * 23'040;
  expect_error(
      [&] { planned(spec, with_budget({64}, 269'030'016 + page - 7)); }, ErrorCode::limit,
      "737273 beside the weights: one page of every layer that stores K and V, for 1 sequence, takes "
      "737280 bytes, 7 more");
  EXPECT_EQ(solved(planned(spec, with_budget({64}, 269'030'016 + page)), View::this_engine).longest, 32);
  PlanOptions o = with_budget({64}, 269'030'016 + page);
  o.reserved_bytes = 10;
  expect_error([&] { planned(spec, o); }, ErrorCode::limit, "10 more than there are");
  o.reserved_bytes = page + 1;
  expect_error([&] { planned(spec, o); }, ErrorCode::limit, "and 737281 are set aside, 1 more");
}

TEST(Budget, LayersWithAWindowAloneFitForAnyLength) {
  ModelSpec spec = config("gemma3-270m");
  for (LayerSpec& layer : spec.layers) layer.attention->window = 512;
  const Plan plan = planned(spec, with_budget({1024}, 4'000'000'000));
  EXPECT_FALSE(solved(plan, View::needed).by_memory);
  EXPECT_EQ(solved(plan, View::needed).longest, spec.max_position);
  EXPECT_FALSE(plan.crossover.stored);
}

TEST(Plan, AModelWithoutAttentionHasNoCache) {
  ModelSpec spec = config("smollm2-135m");
  for (LayerSpec& layer : spec.layers) layer.attention.reset();
  const Plan plan = planned(spec, with_budget({64}, 4'000'000'000));
  EXPECT_EQ(plan.lines[0].needed_bytes, 0);
  EXPECT_EQ(plan.lines[0].factor(plan.lines[0].views[0]), 1.0);
  EXPECT_FALSE(plan.crossover.read);
  EXPECT_FALSE(plan.budget->views[0].most_sequences[0]) << "any number of them";
}

// ---- beyond 64 bits

TEST(Plan, NumbersBeyond64BitsAreRefused) {
  PlanOptions o = options({1'000'000});
  o.max_position = int64_t{1} << 40;
  o.sequences = int64_t{1} << 32;
  expect_error([&] { planned(config("31b"), o); }, ErrorCode::limit, "is beyond 64 bits");
  o.sequences = 1;
  o.lengths = {int64_t{1} << 40};
  EXPECT_EQ(planned(config("smollm2-135m"), o).lines[0].needed_bytes, (int64_t{1} << 40) * 23'040);
}

TEST(Plan, LengthsAreInRange) {
  expect_error([] { planned(config("e2b"), options({0})); }, ErrorCode::usage, "got 0");
  expect_error([] { planned(config("e2b"), options({131'073})); }, ErrorCode::usage, "got 131073");
}

// ---- JSON and CSV

TEST(Plan, JsonAndCsvHaveThePlansNumbers) {
  PlanOptions o = with_budget({512, 4096}, int64_t{16} << 30);
  o.ranks = 2;
  const ModelSpec spec = config("e2b");
  const Plan plan = planned(spec, o);
  const boost::json::object out = plan_json(plan, spec, {"gemma4", "config.json only"}, {});
  EXPECT_EQ(out.at("schema").as_string(), "lapidary.kv.plan");
  EXPECT_EQ(out.at("kv_per_token").at("read_past_window_bytes").as_int64(), 14'336);
  EXPECT_EQ(out.at("lengths").at(1).at("needed_bytes").as_int64(), 30 * kMiB);
  EXPECT_EQ(out.at("lengths").at(1).at("views").at(0).at("factor").as_double(), 1.0);
  EXPECT_EQ(out.at("model").at("owners").as_int64(), 15);
  EXPECT_EQ(out.at("model").at("borrowers").as_int64(), 20);
  EXPECT_EQ(out.at("tp").at("ranks").as_int64(), 2);
  EXPECT_EQ(out.at("budget").at("budget_bytes").as_int64(), int64_t{16} << 30);
  const std::string csv = plan_csv(plan);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  EXPECT_NE(csv.find("\n4096,1,"), std::string::npos) << csv;
  EXPECT_NE(csv.find(",31457280,"), std::string::npos) << csv;
  const std::string first = csv.substr(0, csv.find('\n')), last = csv.substr(csv.rfind("\n4096") + 1);
  EXPECT_EQ(std::count(first.begin(), first.end(), ','), std::count(last.begin(), last.end(), ','));
}

}  // namespace
}  // namespace lapidary::test
