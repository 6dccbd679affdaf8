// `lapidary kv report` as its users run it: what is written, that it is the same twice, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

const std::string kModel = data_path("gguf/models/gemma4-e2b-tiny-F32.gguf").string();  // windows of 8
constexpr const char* kPrompt = "The capital of France is </script>, and that of Spain";
const std::vector<std::string> kFiles{"report.csv", "report.html", "report.json", "report.md",
                                      "trace.perfetto.json"};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

json::object parsed(const fs::path& path) {
  return json::parse(read(path)).as_object();
}

class KvReport : public testing::Test {
 protected:
  Outcome report(std::vector<std::string> more, const std::string& prompt = kPrompt) {
    std::vector<std::string> arguments{"kv", "report", kModel, prompt, "--ignore-eos"};
    if (std::find(more.begin(), more.end(), "-n") == more.end()) more.insert(more.end(), {"-n", "40"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return program_.run(arguments);
  }
  fs::path at(const std::string& name) const { return program_.folder().path() / name; }
  std::vector<std::string> names(const std::string& folder) const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(at(folder))) out.push_back(entry.path().filename());
    std::sort(out.begin(), out.end());
    return out;
  }
  size_t entries() const { return names(".").size(); }
  Program program_;
};

const std::vector<std::string> kQuick{"--no-roofline", "--no-recompute", "--no-offload"};
std::vector<std::string> quick(std::vector<std::string> more) {
  more.insert(more.end(), kQuick.begin(), kQuick.end());
  return more;
}

TEST_F(KvReport, OneRunMakesAllFilesAndTheyAgree) {
  const Outcome outcome = report({"-o", "out", "--roofline-lengths", "8,16", "--roofline-steps", "2",
                                  "--probe-mb", "2", "--curve", "4,8"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  EXPECT_EQ(names("out"), kFiles);
  const json::object data = parsed(at("out/report.json"));
  for (const char* part : {"trace", "bytes", "plan", "recompute", "roofline", "offload"}) {
    ASSERT_TRUE(data.contains(part)) << part;
    EXPECT_EQ(data.at(part).at("schema").as_string(), std::string("lapidary.kv.") + part);
  }
  const json::value& summary = data.at("trace").at("summary");
  const int64_t cached = summary.at("cached_positions").as_int64();
  EXPECT_EQ(cached, summary.at("prompt_tokens").as_int64() + 40);
  EXPECT_EQ(data.at("recompute").at("positions").as_int64(), cached);
  EXPECT_EQ(data.at("repro").at("model_hash"), data.at("offload").at("repro").at("model_hash"));
  // The page holds the same data; the other files one line, or one event, for each call of it.
  const std::string page = read(at("out/report.html"));
  const std::string opening = "id=\"data\">";
  const size_t from = page.find(opening) + opening.size();
  EXPECT_EQ(json::parse(page.substr(from, page.find("</script>", from) - from)), json::value(data));
  const auto calls = static_cast<int64_t>(data.at("trace").at("calls").as_array().size());
  const std::string csv = read(at("out/report.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), calls + 1);
  int64_t slices = 0, arrows = 0;
  std::set<std::string> operations;
  const json::object viewer = parsed(at("out/trace.perfetto.json"));
  for (const json::value& event : viewer.at("traceEvents").as_array()) {
    const bool slice = event.at("ph").as_string() == "X";
    slices += slice && event.at("tid").as_int64() == 1 ? 1 : 0;
    arrows += event.at("ph").as_string() == "s" ? 1 : 0;
    if (slice) operations.insert(std::string(event.at("name").as_string()));
  }
  EXPECT_EQ(slices, calls);
  int64_t borrowers = 0;
  for (const json::value& layer : data.at("trace").at("layers").as_array())
    borrowers += layer.at("role").as_string() == "borrower" ? 1 : 0;
  EXPECT_GT(borrowers, 0);
  EXPECT_EQ(arrows, calls * borrowers);
  for (const char* name : {"query", "attended", "ffn_output", "head", "layer 0"})
    EXPECT_TRUE(operations.contains(name)) << name;
  EXPECT_NE(read(at("out/report.md")).find("checks passed."), std::string::npos);
  EXPECT_NE(outcome.out.find("100.0 %"), std::string::npos) << outcome.out;
}

TEST_F(KvReport, WithoutTimingsTwoRunsAreTheSameBytes) {
  for (const char* folder : {"first", "second"}) {
    fs::create_directory(at(folder));
    const Outcome outcome = report({"-o", "out", "--no-timings"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    fs::rename(at("out"), at(std::string(folder) + "/out"));
  }
  for (const std::string& name : kFiles)
    EXPECT_EQ(read(at("first/out/" + name)), read(at("second/out/" + name))) << name;
  EXPECT_EQ(read(at("first/out/report.json")).find("seconds"), std::string::npos);
}

// What a clock says may differ, and nothing else: the numbers of two full runs, with the clock's taken out.
TEST_F(KvReport, WithTimingsOnlyTheyDiffer) {
  const auto run = [&] {
    const Outcome outcome = report(quick({"--json"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    json::object data = json::parse(outcome.out).as_object();
    for (json::value& call : data["trace"].as_object()["calls"].as_array()) {
      EXPECT_EQ(call.as_object().erase("seconds") + call.as_object().erase("watched_seconds"), 2U);
    }
    return data;
  };
  EXPECT_EQ(run(), run());
}

TEST_F(KvReport, ThePageAloneIsOneFile) {
  ASSERT_EQ(report(quick({"-o", "page.html"})).exit_code, 0);
  EXPECT_EQ(read(at("page.html")).substr(0, 15), "<!doctype html>");
  EXPECT_EQ(entries(), 1U);
  expect_refusal(report(quick({"-o", "page.html"})), 2, "--force");
  EXPECT_EQ(report(quick({"-o", "page.html", "--force"})).exit_code, 0);
}

TEST_F(KvReport, AnExistingFolderIsReplacedOnlyWhenItIsAReport) {
  ASSERT_EQ(report(quick({"-o", "out"})).exit_code, 0);
  const Outcome refused = report(quick({"-o", "out"}));
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_EQ(names("out"), kFiles);
  EXPECT_EQ(report(quick({"-o", "out", "--force"})).exit_code, 0);
  program_.folder().write("out/thesis.txt", std::string_view("years"));
  expect_refusal(report(quick({"-o", "out", "--force"})), 2, "thesis.txt");
  EXPECT_EQ(read(at("out/thesis.txt")), "years");
}

TEST_F(KvReport, WhatCannotBeDoneIsSaidBeforeAnythingIsWritten) {
  expect_refusal(report({}), 2, "-o");
  expect_refusal(report(quick({"-o", "no/such/folder/out"})), 1, "no/such/folder");
  expect_refusal(report(quick({"-o", "out", "--kv-dtype", "q3"})), 2, "q3");
  expect_refusal(report(quick({"-o", "out", "--mode", "fast"})), 2, "--mode");
  expect_refusal(report({"-o", "out", "--curve", "100000000"}), 2, "--curve");
  expect_refusal(report({"-o", "out", "--no-roofline", "--roofline-steps", "3"}), 2, "--roofline-steps");
  const Outcome long_one = report(quick({"-o", "out", "-n", "1000000"}));
  EXPECT_NE(long_one.exit_code, 0);
  EXPECT_NE(long_one.err.find("decode calls"), std::string::npos) << long_one.err;
  EXPECT_EQ(entries(), 0U);
}

TEST_F(KvReport, TokensWithoutATokenizerMakeAReportToo) {
  const std::string model = data_path("models/gemma4-e2b-tiny").string();
  const Outcome outcome = program_.run(std::vector<std::string>{
      "kv", "report", model, "--ids", "2,10,11,12", "-n", "20", "--ignore-eos", "-o", "out", "--no-timings"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  EXPECT_EQ(parsed(at("out/report.json")).at("trace").at("prompt").at("mode").as_string(), "ids");
}

// The run that the lab grew from: five tokens, ten decode calls, 23,040 bytes a position.
TEST(RealKvReport, OfTheCapitalOfFrance) {
  const Program program;
  const json::object data = program.json(
      Invocation{.arguments = {"kv", "report", "smollm2-135m-instruct", "The capital of France is", "-n",
                               "10", "--json", "--no-roofline", "--no-timings"},
                 .user_cache = true});
  const json::value& trace = data.at("trace");
  EXPECT_EQ(trace.at("position_bytes").as_int64(), 23040);
  EXPECT_EQ(trace.at("summary").at("picked_tokens").as_int64(), 11);
  EXPECT_EQ(trace.at("summary").at("cached_positions").as_int64(), 15);
  EXPECT_EQ(trace.at("summary").at("kv_written_bytes").as_int64(), 15 * 23040);
  EXPECT_EQ(json::serialize(trace.at("calls").at(0).at("fed")),
            R"([{"id":504,"piece":"The"},{"id":3575,"piece":" capital"},{"id":282,"piece":" of"},)"
            R"({"id":4649,"piece":" France"},{"id":314,"piece":" is"}])");
  const json::value& exact = data.at("recompute").at("runs").at(0);
  EXPECT_EQ(exact.at("name").as_string(), "exact");
  for (const json::value& again : exact.at("recomputations").as_array())
    EXPECT_EQ(again.at("kv").at("equal").as_int64(), 15 * 23040 / 2);  // elements of two bytes
}

}  // namespace
}  // namespace lapidary::test
