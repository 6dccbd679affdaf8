// Losses and gradients of every parameter against another stack's autograd (tests/data/train).
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <boost/json.hpp>
#include <cmath>

#include "formats/hf_tensors.h"
#include "reference/losses.h"
#include "reference/model.h"
#include "support/compare.h"
#include "support/golden_models.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

constexpr double kLoss = 1e-4;      // absolute; docs/numerics.md
constexpr double kGradient = 1e-3;  // of the gradient's norm

at::Tensor tensor(const Golden& golden, const std::string& name) {
  const std::vector<float> values = golden.floats(name);
  return at::tensor(values, at::kFloat).view(golden.shape(name)).to(at::kDouble);
}

class Gradients : public testing::TestWithParam<std::string> {
 protected:
  Gradients()
      : checkpoint(open_golden_model(GetParam())),
        golden(data_path("train/" + GetParam() + ".safetensors")),
        expected(read_json(data_path("train/" + GetParam() + ".json")).as_object()),
        parameters(checkpoint.spec, *checkpoint.tensors, at::kDouble),
        model(checkpoint.spec, parameters, at::kDouble),
        ids(at::tensor(golden.ints("input_ids"), at::kLong)) {
    parameters.require_gradients();
  }

  at::Tensor logits() {
    reference::Cache cache = model.empty_cache();
    return model.logits(model.forward(ids, cache));
  }

  void expect_gradients(const at::Tensor& loss, const std::string& name) {
    const json::object& truth = expected.at(name).as_object();
    EXPECT_NEAR(loss.item<double>(), truth.at("loss").to_number<double>(), kLoss) << name;
    std::vector<at::Tensor> inputs;
    std::vector<Slot> slots;
    for (const auto& [slot, parameter] : parameters.all()) {
      if (!parameter.requires_grad()) continue;
      inputs.push_back(parameter);
      slots.push_back(slot);
    }
    const auto gradients = torch::autograd::grad({loss}, inputs, {}, false, false, true);
    const json::object& table = truth.at("grad").as_object();
    size_t compared = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      const std::string hf = "model." + hf_name(slots[i], checkpoint.family);
      ASSERT_TRUE(table.contains(hf)) << slot_name(slots[i]) << " = " << hf;
      ASSERT_TRUE(gradients[i].defined()) << hf;
      expect_gradient(gradients[i], table.at(hf).as_object(), name + ": " + hf);
      ++compared;
    }
    EXPECT_EQ(compared, table.size()) << "every gradient of the golden belongs to a slot";
  }

  static void expect_gradient(const at::Tensor& gradient, const json::object& truth,
                              const std::string& label) {
    const double norm = truth.at("l2").to_number<double>();
    EXPECT_NEAR(gradient.norm().item<double>(), norm, kGradient * norm) << label;
    EXPECT_NEAR(gradient.sum().item<double>(), truth.at("sum").to_number<double>(),
                kGradient * norm * std::sqrt(static_cast<double>(gradient.numel())))
        << label;
    const at::Tensor flat = gradient.flatten();
    const json::array& first = truth.at("first").as_array();
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_NEAR(flat[static_cast<int64_t>(i)].item<double>(), first[i].to_number<double>(),
                  kGradient * norm)
          << label << " element " << i;
    }
  }

  Checkpoint checkpoint;
  Golden golden;
  json::object expected;
  reference::HeldParameters parameters;
  reference::Model model;
  at::Tensor ids;
};

TEST_P(Gradients, OfNextTokens) {
  expect_gradients(reference::next_token_loss(logits(), ids), "cross_entropy");
}

TEST_P(Gradients, OfDistillation) {
  const at::Tensor teacher = tensor(golden, "teacher_logits");
  expect_gradients(reference::distillation_loss(logits(), teacher, 1.0), "distill_T1");
  expect_gradients(reference::distillation_loss(logits(), teacher, 2.0), "distill_T2");
}

INSTANTIATE_TEST_SUITE_P(, Gradients,
                         testing::Values("gemma4-e2b-tiny", "gemma4-12b-tiny", "gemma4-26b-tiny",
                                         "llama-tiny"),
                         name_of_model);

}  // namespace
}  // namespace lapidary::test
