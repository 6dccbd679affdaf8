// Each special feature, switched off in the spec or in the weights. The goldens record how far the logits of
// the original stack move when the same switch is thrown there; the engine must move as far. One that ignores
// the feature would not move at all.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/harness.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

constexpr double kLeastMove = 0.01;   // fifty times the tolerance
constexpr double kMoveError = 0.005;  // how well a recorded move must be met, of itself

struct Model {
  explicit Model(const std::string& name) : checkpoint(open_golden_model(name)), golden(golden_case(name)) {}
  Checkpoint checkpoint;
  Golden golden;
};

// What a switch may change.
struct Variant {
  explicit Variant(const Model& model)
      : family(model.checkpoint.family), spec(model.checkpoint.spec), tensors(*model.checkpoint.tensors) {}

  std::string family;
  ModelSpec spec;
  PatchedTensors tensors;

  int64_t n_layers() const { return spec.n_layers(); }
  LayerSpec& layer(int64_t i) { return spec.layers.at(static_cast<size_t>(i)); }
  AttentionSpec& attention(int64_t i) { return layer(i).attention.value(); }

  void each_attention(const std::function<void(AttentionSpec&)>& f) {
    for (LayerSpec& l : spec.layers) f(l.attention.value());
  }
  void each_attention(bool sliding, const std::function<void(AttentionSpec&)>& f) {
    each_attention([&](AttentionSpec& a) {
      if ((a.window > 0) == sliding) f(a);
    });
  }
  // All tensors of a kind; a switch that finds none is a mistake.
  void change(TensorKind kind, const std::function<void(std::vector<float>&)>& f) {
    std::vector<Slot> slots;
    for_each_tensor(spec, [&](const TensorInfo& info) {
      if (info.slot.kind == kind) slots.push_back(info.slot);
    });
    ensure(!slots.empty(), ErrorCode::internal, "the model has no tensor of this kind");
    for (const Slot& slot : slots) tensors.change(slot, f);
  }
  void fill(TensorKind kind, float value) {
    change(kind, [&](std::vector<float>& values) { std::fill(values.begin(), values.end(), value); });
  }
};

using Switch = std::function<void(Variant&)>;

// Weights that the original stack stores as w and uses as 1 + w.
float stored_one(const Variant& v) {
  return v.family == "gemma3" ? 2.0f : 1.0f;
}

RopeSpec exponent_over_the_turning_part(int64_t head_dim) {
  RopeSpec rope{.kind = RopeKind::divisors, .theta = 1e6};
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const bool turns = i < head_dim / 8;
    rope.divisors.push_back(turns ? static_cast<float>(std::pow(
                                        1e6, 6.0 * static_cast<double>(i) / static_cast<double>(head_dim)))
                                  : 1e30f);
  }
  return rope;
}

// Copies and mirrors of the key projection as a value projection, where the model makes V of K.
void give_value_projection(Variant& v, bool mirrored) {
  for (int64_t i = 0; i < v.n_layers(); ++i) {
    AttentionSpec& a = v.attention(i);
    if (!a.k_eq_v) continue;
    const TensorData key = v.tensors.read({TensorKind::key, i});
    std::vector<float> values = to_floats(key.view);
    const auto columns = static_cast<std::ptrdiff_t>(key.view.columns());
    for (auto row = values.begin(); mirrored && row != values.end(); row += columns)
      std::reverse(row, row + columns);
    a.k_eq_v = false;
    v.tensors.set({TensorKind::value, i}, key.view.shape, values);
  }
}

// Borrowers of one kind read the first owner of their kind; false when the first is the one they should read.
bool borrow_from_the_first(Variant& v, bool sliding) {
  int64_t first = -1;
  bool moved = false;
  for (int64_t i = 0; i < v.n_layers(); ++i) {
    AttentionSpec& a = v.attention(i);
    if ((a.window > 0) != sliding) continue;
    if (first < 0) first = i;
    if (a.kv_owner == i || a.kv_owner == first) continue;
    a.kv_owner = first;
    moved = true;
  }
  return moved;
}

// Borrowers make keys and values of their own stream, with the weights of their owner.
void stop_borrowing(Variant& v) {
  for (int64_t i = 0; i < v.n_layers(); ++i) {
    AttentionSpec& a = v.attention(i);
    if (a.kv_owner == i) continue;
    for (const TensorKind kind : {TensorKind::key, TensorKind::value, TensorKind::key_norm}) {
      if ((kind == TensorKind::value && a.k_eq_v) || (kind == TensorKind::key_norm && !a.k_norm)) continue;
      const TensorData tensor = v.tensors.read({kind, a.kv_owner});
      v.tensors.set({kind, i}, tensor.view.shape, to_floats(tensor.view));
    }
    a.kv_owner = i;
  }
}

void silence_second_half_of_wide_ffn(Variant& v) {
  const int64_t narrow = v.layer(0).ffn->d_ff;
  for (int64_t i = 0; i < v.n_layers(); ++i) {
    const int64_t wide = v.layer(i).ffn->d_ff;
    if (wide == narrow) continue;
    v.tensors.change({TensorKind::down, i}, [&](std::vector<float>& values) {
      for (size_t j = 0; j < values.size(); ++j) {
        if (static_cast<int64_t>(j) % wide >= narrow) values[j] = 0.0f;
      }
    });
  }
}

void swap_gate_and_up_of_experts(Variant& v) {
  for (int64_t i = 0; i < v.n_layers(); ++i) {
    const MoeSpec& moe = v.layer(i).ffn->moe.value();
    const std::ptrdiff_t half = moe.d_ff * v.spec.d_model;
    v.tensors.change({TensorKind::expert_gate_up, i}, [&](std::vector<float>& values) {
      for (auto expert = values.begin(); expert != values.end(); expert += 2 * half)
        std::swap_ranges(expert, expert + half, expert + half);
    });
  }
}

// The names under which the goldens record moves → the same switch here. "layer_scalar of layer N" is handled
// by its number.
const std::map<std::string, Switch>& recorded_switches() {
  using K = TensorKind;
  static const std::map<std::string, Switch> switches = {
      {"sliding window", [](Variant& v) { v.each_attention(true, [](AttentionSpec& a) { a.window = 0; }); }},
      {"window off by one",
       [](Variant& v) { v.each_attention(true, [](AttentionSpec& a) { a.window += 1; }); }},
      {"q_norm", [](Variant& v) { v.fill(K::query_norm, stored_one(v)); }},
      {"k_norm", [](Variant& v) { v.fill(K::key_norm, stored_one(v)); }},
      {"v_norm", [](Variant& v) { v.each_attention([](AttentionSpec& a) { a.v_norm = false; }); }},
      {"embedding scale", [](Variant& v) { v.spec.embed_scale = 1.0; }},
      {"sliding rope theta",
       [](Variant& v) { v.each_attention(true, [](AttentionSpec& a) { a.rope.theta = 1e6; }); }},
      {"global rope theta",
       [](Variant& v) { v.each_attention(false, [](AttentionSpec& a) { a.rope.theta = 1e4; }); }},
      {"rope theta 1e5", [](Variant& v) { v.each_attention([](AttentionSpec& a) { a.rope.theta = 1e4; }); }},
      {"partial rotary",
       [](Variant& v) { v.each_attention(false, [](AttentionSpec& a) { a.rope = {.theta = 1e6}; }); }},
      {"rope exponent over the whole head",
       [](Variant& v) {
         v.each_attention(false,
                          [](AttentionSpec& a) { a.rope = exponent_over_the_turning_part(a.head_dim); });
       }},
      {"llama3 rope scaling",
       [](Variant& v) { v.each_attention([](AttentionSpec& a) { a.rope = {.theta = 5e5}; }); }},
      {"query_pre_attn_scalar",
       [](Variant& v) {
         v.each_attention(
             [](AttentionSpec& a) { a.scale = 1.0 / std::sqrt(static_cast<double>(a.head_dim)); });
       }},
      {"attention scale 1",
       [](Variant& v) {
         v.each_attention(
             [](AttentionSpec& a) { a.scale = 1.0 / std::sqrt(static_cast<double>(a.head_dim)); });
       }},
      {"final softcap", [](Variant& v) { v.spec.logit_softcap = 0.0; }},
      {"layer_scalar", [](Variant& v) { v.fill(K::layer_scalar, 1.0f); }},
      {"PLE", [](Variant& v) { v.fill(K::ple_post_norm, 0.0f); }},
      {"PLE table", [](Variant& v) { v.fill(K::ple_embedding, 0.0f); }},
      {"PLE projection", [](Variant& v) { v.fill(K::ple_projection, 0.0f); }},
      {"PLE table scale",
       [](Variant& v) {
         const float scale = std::sqrt(static_cast<float>(v.spec.ple_dim));
         v.change(K::ple_embedding, [&](std::vector<float>& values) {
           for (float& x : values) x /= scale;
         });
       }},
      {"double-wide MLP", silence_second_half_of_wide_ffn},
      {"experts", [](Variant& v) { v.fill(K::expert_down, 0.0f); }},
      {"dense branch", [](Variant& v) { v.fill(K::dense_post_norm, 0.0f); }},
      {"router scale", [](Variant& v) { v.fill(K::router_scale, 1.0f); }},
      {"per_expert_scale", [](Variant& v) { v.fill(K::expert_scale, 1.0f); }},
      {"one expert fewer",
       [](Variant& v) {
         for (LayerSpec& l : v.spec.layers) --l.ffn->moe->top_k;
       }},
      {"gate before up", swap_gate_and_up_of_experts},
      {"pre_feedforward_layernorm_2", [](Variant& v) { v.fill(K::expert_pre_norm, 1.0f); }},
      {"attention_k_eq_v", [](Variant& v) { give_value_projection(v, true); }},
      {"attention_k_eq_v (v_proj = k_proj copy, must be 0)",
       [](Variant& v) { give_value_projection(v, false); }},
      {"untied head",
       [](Variant& v) {
         const TensorData table = v.tensors.read({K::token_embedding});
         v.tensors.set({K::output_head}, table.view.shape, to_floats(table.view));
       }},
      {"attention", [](Variant& v) { v.fill(K::attention_output, 0.0f); }},
  };
  return switches;
}

float greatest_move(const std::vector<float>& logits, const std::vector<float>& golden) {
  float most = 0.0f;
  for (size_t i = 0; i < golden.size(); ++i) most = std::max(most, std::abs(logits.at(i) - golden[i]));
  return most;
}

std::vector<float> run_variant(const Variant& v, const Model& model, Probe* probe = nullptr) {
  return run_model(v.spec, v.tensors, tokens_of(model.golden), one_thread(), probe);
}

class RecordedMoves : public testing::TestWithParam<std::string> {};

TEST_P(RecordedMoves, AreMet) {
  const Model model(GetParam());
  const std::vector<float> golden = model.golden.floats("logits");
  const boost::json::value document = read_json(data_path("cases/" + case_name(GetParam()) + ".json"));
  const boost::json::object& moves = document.at("max_abs_logit_change_when_off").as_object();
  ASSERT_FALSE(moves.empty());
  for (const auto& [key, recorded] : moves) {
    const std::string name(key);
    SCOPED_TRACE(name);
    Variant variant(model);
    bool same_switch = true;
    if (name.starts_with("KV sharing, ")) {
      // With one owner of the kind the goldens shifted its values; no spec says that, so borrowing stops
      // instead.
      same_switch = borrow_from_the_first(variant, name.find("sliding") != std::string::npos);
      if (!same_switch) stop_borrowing(variant);
    } else if (name.starts_with("layer_scalar of layer ")) {
      variant.tensors.fill({TensorKind::layer_scalar, std::stoll(name.substr(name.rfind(' ')))}, 1.0f);
    } else {
      const auto found = recorded_switches().find(name);
      ASSERT_NE(found, recorded_switches().end()) << "the goldens record a switch that is not known here";
      found->second(variant);
    }
    const double moved = static_cast<double>(greatest_move(run_variant(variant, model), golden));
    const double expected = recorded.to_number<double>();
    if (expected == 0.0) {
      EXPECT_LT(moved, 2e-3) << "must change nothing";
      continue;
    }
    EXPECT_GT(moved, kLeastMove) << "the engine ignores the feature";
    if (same_switch) {
      EXPECT_NEAR(moved, expected, kMoveError * expected + 1e-3);
    }
  }
}

std::vector<std::string> distinct_models() {
  std::vector<std::string> names = golden_models();
  std::erase_if(names, [](const std::string& name) { return name.ends_with("-sharded"); });
  return names;
}

INSTANTIATE_TEST_SUITE_P(, RecordedMoves, testing::ValuesIn(distinct_models()), name_of_model);

// ---- switches that no golden records: the spec's own fields ----

struct SpecSwitch {
  std::string name;
  std::function<bool(const ModelSpec&)> applies;
  Switch off;
};

bool any_layer(const ModelSpec& spec, const std::function<bool(const LayerSpec&)>& has) {
  return std::any_of(spec.layers.begin(), spec.layers.end(), has);
}
bool any_attention(const ModelSpec& spec, const std::function<bool(const AttentionSpec&)>& has) {
  return any_layer(spec, [&](const LayerSpec& l) { return l.attention && has(*l.attention); });
}
Switch in_layers(const std::function<void(LayerSpec&)>& f) {
  return [f](Variant& v) { std::for_each(v.spec.layers.begin(), v.spec.layers.end(), f); };
}
Switch in_attention(const std::function<void(AttentionSpec&)>& f) {
  return [f](Variant& v) { v.each_attention(f); };
}

const std::vector<SpecSwitch>& spec_switches() {
  const auto always = [](const ModelSpec&) { return true; };
  static const std::vector<SpecSwitch> switches = {
      {"q_norm", [](const ModelSpec& s) { return any_attention(s, [](const auto& a) { return a.q_norm; }); },
       in_attention([](AttentionSpec& a) { a.q_norm = false; })},
      {"k_norm", [](const ModelSpec& s) { return any_attention(s, [](const auto& a) { return a.k_norm; }); },
       in_attention([](AttentionSpec& a) { a.k_norm = false; })},
      {"window one smaller",
       [](const ModelSpec& s) { return any_attention(s, [](const auto& a) { return a.window > 0; }); },
       [](Variant& v) { v.each_attention(true, [](AttentionSpec& a) { --a.window; }); }},
      {"post_attention_norm",
       [](const ModelSpec& s) { return any_layer(s, [](const auto& l) { return l.post_attention_norm; }); },
       in_layers([](LayerSpec& l) { l.post_attention_norm = false; })},
      {"post_ffn_norm",
       [](const ModelSpec& s) { return any_layer(s, [](const auto& l) { return l.post_ffn_norm; }); },
       in_layers([](LayerSpec& l) { l.post_ffn_norm = false; })},
      {"layer_scalar",
       [](const ModelSpec& s) { return any_layer(s, [](const auto& l) { return l.layer_scalar; }); },
       in_layers([](LayerSpec& l) { l.layer_scalar = false; })},
      {"per-layer embedding",
       [](const ModelSpec& s) { return any_layer(s, [](const auto& l) { return l.ple; }); },
       [](Variant& v) {
         for (LayerSpec& l : v.spec.layers) l.ple = false;
         v.spec.ple_dim = 0;
       }},
      {"experts",
       [](const ModelSpec& s) { return any_layer(s, [](const auto& l) { return l.ffn && l.ffn->moe; }); },
       in_layers([](LayerSpec& l) { l.ffn->moe.reset(); })},
      {"KV sharing",
       [](const ModelSpec& s) {
         return any_layer(s, [&](const LayerSpec& l) { return !l.owns_kv(&l - s.layers.data()); });
       },
       stop_borrowing},
      {"activation", always, in_layers([](LayerSpec& l) {
         l.ffn->activation = l.ffn->activation == Activation::silu ? Activation::gelu_tanh : Activation::silu;
       })},
      {"attention scale", always, in_attention([](AttentionSpec& a) { a.scale *= 1.25; })},
      {"norm_eps", always, [](Variant& v) { v.spec.norm_eps = 0.1; }},
      {"rope", always, in_attention([](AttentionSpec& a) {
         a.rope = {.kind = RopeKind::divisors,
                   .theta = 1e4,
                   .divisors = std::vector<float>(static_cast<size_t>(a.head_dim / 2), 1e30f)};
       })},
      {"attention of layer 0", always,
       [](Variant& v) {
         v.layer(0).attention.reset();
         v.layer(0).post_attention_norm = false;
       }},
      {"FFN of layer 0", always,
       [](Variant& v) {
         v.layer(0).ffn.reset();
         v.layer(0).post_ffn_norm = false;
       }},
      {"untied head", [](const ModelSpec& s) { return !s.tied_head; },
       [](Variant& v) { v.spec.tied_head = true; }},
  };
  return switches;
}

class SpecFields : public testing::TestWithParam<std::string> {};

TEST_P(SpecFields, EachMovesTheLogits) {
  const Model model(GetParam());
  const std::vector<float> golden = model.golden.floats("logits");
  for (const SpecSwitch& s : spec_switches()) {
    if (!s.applies(model.checkpoint.spec)) continue;
    SCOPED_TRACE(s.name);
    Variant variant(model);
    s.off(variant);
    EXPECT_GT(greatest_move(run_variant(variant, model), golden), kLeastMove)
        << "the engine ignores the feature";
  }
}

INSTANTIATE_TEST_SUITE_P(, SpecFields, testing::ValuesIn(distinct_models()), name_of_model);

class LastLayerScalar : public testing::TestWithParam<std::string> {};

// The final norm hides the last layer's scalar from the logits; the hidden state shows it.
TEST_P(LastLayerScalar, ScalesTheHiddenState) {
  const Model model(GetParam());
  const int64_t last = model.checkpoint.spec.n_layers() - 1;
  const Slot slot{TensorKind::layer_scalar, last};
  const float stored = to_floats(model.checkpoint.tensors->read(slot).view).at(0);
  const std::vector<float> golden = model.golden.floats("hidden");
  const size_t size = tokens_of(model.golden).size() * static_cast<size_t>(model.checkpoint.spec.d_model);
  Variant variant(model);
  variant.tensors.fill(slot, 3.0f * stored);
  Recorder seen;
  run_variant(variant, model, &seen);
  std::vector<float> expected(golden.end() - static_cast<std::ptrdiff_t>(size), golden.end());
  for (float& x : expected) x *= 3.0f;
  expect_close(Recorder::joined(seen.hidden().at(last)), expected, 2e-4, "three times the stored state");
}

std::vector<std::string> models_with_scalars() {
  std::vector<std::string> names = distinct_models();
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("gemma4"); });
  return names;
}

INSTANTIATE_TEST_SUITE_P(, LastLayerScalar, testing::ValuesIn(models_with_scalars()), name_of_model);

// A feature is only tested where a golden has it: together they must have all.
TEST(Coverage, EverySwitchIsThrownSomewhere) {
  std::set<std::string> recorded, applied;
  for (const std::string& name : distinct_models()) {
    const boost::json::value document = read_json(data_path("cases/" + case_name(name) + ".json"));
    for (const auto& entry : document.at("max_abs_logit_change_when_off").as_object())
      recorded.insert(std::string(entry.key()));
    const ModelSpec spec = open_golden_model(name).spec;
    for (const SpecSwitch& s : spec_switches()) {
      if (s.applies(spec)) applied.insert(s.name);
    }
  }
  for (const auto& [name, unused] : recorded_switches()) EXPECT_EQ(recorded.count(name), 1u) << name;
  for (const SpecSwitch& s : spec_switches()) EXPECT_EQ(applied.count(s.name), 1u) << s.name;
}

}  // namespace
}  // namespace lapidary::test
