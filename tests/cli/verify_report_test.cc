// What `lapidary verify` says of its two steps.
#include "cli/verify_report.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>

namespace lapidary::test {
namespace {

VerifyReport two_prompts() {
  VerifyReport report;
  report.structure_engine = "exact, f32 accumulation, kv f32; avx2; 1 threads";
  report.shipped_engine = "exact, a16, f32 accumulation, kv f32; avx2; 1 threads";
  report.structure_tolerances = strict_tolerances();
  report.shipped_tolerances = tolerances_of(DType::f32, Arithmetic::a16);
  report.prompt_names = {"prose", "code"};
  report.prompt_tokens = {5, 9};
  report.prompts.resize(2);
  report.shipped.resize(2);
  for (size_t i = 0; i < 2; ++i) {
    report.prompts[i].comparison.layers.resize(1);
    LogitComparison& z = report.shipped[i].logits;
    z.rows = i == 0 ? 1 : 3;
    z.same_first_choice = 1;
    z.kl_mean = i == 0 ? 4e-6 : 8e-6;
    z.kl_max = 9e-6;
    z.scored = 2;
    z.logprob_sum = -2 * std::log(8.0);
    z.expected_logprob_sum = -2 * std::log(4.0);
  }
  return report;
}

TEST(VerifyReport, SaysWhatBothStepsHaveShown) {
  const VerifyReport report = two_prompts();
  EXPECT_TRUE(report.passed());
  const std::string text = verify_text(report, Style(false));
  EXPECT_NE(text.find("structure: every difference within 0.0002; shipped mode: mean KL 8e-06 nats, within "
                      "0.0001"),
            std::string::npos)
      << text;
  const boost::json::object json = verify_json(report);
  const boost::json::object& all = json.at("shipped").at("all").as_object();
  EXPECT_NEAR(all.at("kl_mean").as_double(), 7e-6, 1e-12) << "of rows, not of prompts";
  EXPECT_NEAR(all.at("perplexity").as_double(), 8, 1e-9);
  EXPECT_NEAR(all.at("reference_perplexity").as_double(), 4, 1e-9);
  EXPECT_EQ(all.at("same_first_choice").as_int64(), 2);
}

TEST(VerifyReport, AFailureNamesItsStep) {
  VerifyReport report = two_prompts();
  report.prompts[1].failure = "layer 3, K: 0.5 at position 7 (tolerance 0.0002)";
  report.shipped[0].failure = "logits: mean KL 0.5 nats (tolerance 0.0001)";
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.failures(),
            (std::vector<std::string>{"structure: code: layer 3, K: 0.5 at position 7 (tolerance 0.0002)",
                                      "shipped mode: prose: logits: mean KL 0.5 nats (tolerance 0.0001)"}));
  const boost::json::object json = verify_json(report);
  EXPECT_FALSE(json.at("structure").at("passed").as_bool());
  EXPECT_FALSE(json.at("shipped").at("passed").as_bool());
  EXPECT_TRUE(json.at("shipped").at("prompts").as_array()[1].at("passed").as_bool());
}

TEST(VerifyReport, SaysWhyThereIsNoSecondStep) {
  VerifyReport report = two_prompts();
  report.shipped.clear();
  report.shipped_engine.clear();
  report.shipped_note = "float as above, nothing more to judge";
  EXPECT_NE(verify_text(report, Style(false)).find("\nshipped mode: float as above"), std::string::npos);
  EXPECT_TRUE(verify_json(report).at("shipped").is_null());
}

}  // namespace
}  // namespace lapidary::test
