// verify on real weights: the models that users have.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

json::object verify(const std::string& model, std::vector<std::string> more) {
  const Program program;
  Invocation invocation{.arguments = {"verify", model, "--json"}, .user_cache = true};
  invocation.arguments.insert(invocation.arguments.end(), more.begin(), more.end());
  return program.json(invocation);
}

TEST(RealVerify, SmolLM2PassesAndSeesEveryDamage) {
  const json::object report = verify("smollm2-135m-instruct", {"--self-test"});
  EXPECT_TRUE(report.at("passed").as_bool()) << json::serialize(report.at("failures"));
  EXPECT_EQ(report.at("structure").at("prompts").as_array().size(), 5u);
  EXPECT_LT(report.at("shipped").at("all").at("kl_mean").to_number<double>(), 1e-4);
  int caught = 0;
  for (const json::value& m : report.at("mutations").as_array())
    caught += m.at("outcome").as_string() == "caught";
  EXPECT_EQ(caught, 7);
}

TEST(RealVerify, APackedSmolLM2Passes) {
  const Program program;
  const Invocation pack{.arguments = {"pack", "smollm2-135m-instruct", "m.lapidary"}, .user_cache = true};
  ASSERT_EQ(program.run(pack).exit_code, 0);
  const json::object report = program.json({"verify", "m.lapidary", "--json"});
  EXPECT_TRUE(report.at("passed").as_bool()) << json::serialize(report.at("failures"));
  EXPECT_EQ(report.at("structure").at("prompts").as_array().size(), 5u);
}

TEST(RealVerify, Gemma3PassesPastItsWindow) {
  const json::object report = verify("gemma3-270m", {});
  EXPECT_TRUE(report.at("passed").as_bool()) << json::serialize(report.at("failures"));
  for (const char* step : {"structure", "shipped"}) {
    const json::value& last = report.at(step).at("prompts").as_array().back();
    EXPECT_EQ(last.at("name").as_string(), "past the window");
    EXPECT_EQ(last.at("tokens").to_number<int>(), 560);
  }
}

}  // namespace
}  // namespace lapidary::test
