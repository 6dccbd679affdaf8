// What /metrics says, read back line by line.
#include "serve/metrics/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace lapidary::serve {
namespace {

Metrics::About about() {
  return {"tiny \"model\"", "0.1", "exact", {"/v1/chat/completions", "/v1/models"}};
}

// Series → value, comments left out.
std::map<std::string, double> series(const std::string& text) {
  std::map<std::string, double> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    EXPECT_TRUE(out.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second) << line;
  }
  return out;
}

// The value of the one series of this name that carries all of these labels.
double value(const Metrics& metrics, const std::string& name, const std::vector<std::string>& labels = {},
             const SchedulerView& view = {}, const HttpStats& http = {}) {
  std::vector<double> found;
  for (const auto& [key, number] : series(metrics.text(view, http))) {
    bool all = key.substr(0, key.find('{')) == name;
    for (const std::string& label : labels) all = all && key.find(label) != std::string::npos;
    if (all) found.push_back(number);
  }
  EXPECT_EQ(found.size(), 1u) << name;
  return found.empty() ? -1 : found[0];
}

RequestRecord answered(const std::string& endpoint, int status) {
  RequestRecord record;
  record.endpoint = endpoint;
  record.status = status;
  return record;
}

TEST(Metrics, ARequestOfTwoTextsIsCountedByTextAndByRequest) {
  Metrics metrics(about());
  RequestRecord record = answered("/v1/chat/completions", 200);
  record.seconds = 3;
  record.first_token_seconds = 0.3;
  record.token_gaps = {0.03, 0.03, 0.5};
  JobEnd stopped;
  stopped.reason = EndReason::stop_token;
  stopped.prompt_tokens = 10;
  stopped.generated_tokens = 3;
  stopped.decode_seconds = 0.8;
  stopped.queue_seconds = 0.02;
  stopped.prefill_seconds = 0.25;
  JobEnd cut = stopped;
  cut.reason = EndReason::max_tokens;
  cut.generated_tokens = 1;
  record.texts = {stopped, cut};
  metrics.on_request(record);

  EXPECT_EQ(value(metrics, "vllm:prompt_tokens_total"), 20);
  EXPECT_EQ(value(metrics, "vllm:generation_tokens_total"), 4);
  EXPECT_EQ(value(metrics, "vllm:request_success_total", {"finished_reason=\"stop\""}), 1);
  EXPECT_EQ(value(metrics, "vllm:request_success_total", {"finished_reason=\"length\""}), 1);
  EXPECT_EQ(value(metrics, "vllm:request_success_total", {"finished_reason=\"abort\""}), 0);
  EXPECT_EQ(value(metrics, "lapidary:text_ends_total", {"reason=\"max_tokens\""}), 1);
  EXPECT_EQ(value(metrics, "vllm:time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(value(metrics, "vllm:time_to_first_token_seconds_sum"), 0.3);
  EXPECT_EQ(value(metrics, "vllm:inter_token_latency_seconds_count"), 3);
  EXPECT_EQ(value(metrics, "vllm:inter_token_latency_seconds_bucket", {"le=\"0.04\""}), 2);
  EXPECT_EQ(value(metrics, "vllm:e2e_request_latency_seconds_sum"), 3);
  EXPECT_EQ(value(metrics, "vllm:request_queue_time_seconds_count"), 2);
  EXPECT_EQ(value(metrics, "vllm:request_prefill_time_seconds_sum"), 0.5);
  EXPECT_EQ(value(metrics, "vllm:request_decode_time_seconds_count"), 2);
  EXPECT_EQ(value(metrics, "vllm:request_time_per_output_token_seconds_sum"), 0.4);
  EXPECT_EQ(value(metrics, "vllm:request_time_per_output_token_seconds_count"), 1);
}

TEST(Metrics, EveryEndHasAReasonOfBothVocabularies) {
  const std::map<EndReason, std::string> words = {
      {EndReason::stop_token, "stop"}, {EndReason::max_tokens, "length"}, {EndReason::context, "length"},
      {EndReason::complete, "stop"},   {EndReason::sink, "stop"},         {EndReason::cancelled, "abort"},
      {EndReason::deadline, "abort"},  {EndReason::error, "error"},       {EndReason::shutdown, "abort"}};
  for (const auto& [reason, word] : words) {
    Metrics metrics(about());
    RequestRecord record = answered("/v1/chat/completions", 200);
    record.texts.resize(1);
    record.texts[0].reason = reason;
    metrics.on_request(record);
    EXPECT_EQ(value(metrics, "vllm:request_success_total", {"finished_reason=\"" + word + "\""}), 1);
    EXPECT_EQ(value(metrics, "lapidary:text_ends_total",
                    {"reason=\"" + std::string(end_reason_name(reason)) + "\""}),
              1);
  }
}

TEST(Metrics, PathsThatClientsMakeUpShareOneSeries) {
  Metrics metrics(about());
  for (int i = 0; i < 100; ++i) {
    metrics.on_request(answered("/made/up/" + std::to_string(i), 404));
  }
  metrics.on_request(answered("/v1/models", 200));
  metrics.on_request(answered("/v1/models", -7));
  EXPECT_EQ(value(metrics, "lapidary:http_requests_total", {"endpoint=\"other\"", "status=\"404\""}), 100);
  EXPECT_EQ(value(metrics, "lapidary:http_requests_total", {"/v1/models", "status=\"200\""}), 1);
  EXPECT_EQ(value(metrics, "lapidary:http_requests_total", {"/v1/models", "status=\"other\""}), 1);
  int64_t number = 0;
  for (const auto& [key, count] : series(metrics.text({}, {}))) {
    number += key.starts_with("lapidary:http_requests_total") ? 1 : 0;
  }
  EXPECT_EQ(number, 4);  // the two routes with 200, and the two above that were not there yet
}

TEST(Metrics, ARefusedRequestIsNoLatency) {
  Metrics metrics(about());
  metrics.on_request(answered("/v1/chat/completions", 400));
  EXPECT_EQ(value(metrics, "vllm:e2e_request_latency_seconds_count"), 0);
  EXPECT_EQ(value(metrics, "vllm:time_to_first_token_seconds_count"), 0);
}

TEST(Metrics, TheSchedulersViewIsReadAtTheScrape) {
  Metrics metrics(about());
  SchedulerView view;
  view.running = 3;
  view.queued = 2;
  view.paused = 1;
  view.preemptions = 5;
  view.room.total = 1000;
  view.room.in_use = 250;
  view.pools = {{"sliding", 4096, 7, 2, 1, 28672}, {"full", 8192, 9, 0, 4, 73728}};
  view.cache.prompts[Reuse::whole] = 4;
  view.cache.prompts[Reuse::window_lost] = 2;
  view.cache.prompt_tokens = 100;
  view.cache.cached_tokens = 60;
  view.gap_counts.assign(std::size(kGapBounds) + 1, 0);
  view.gap_counts[0] = 10;
  view.gap_counts[3] = 2;
  view.gap_counts.back() = 1;
  view.worst_gap_seconds = 7.5;
  HttpStats http;
  http.connections = 11;
  http.timed_out = 4;
  const auto got = [&](const std::string& name, const std::vector<std::string>& labels = {}) {
    return value(metrics, name, labels, view, http);
  };
  EXPECT_EQ(got("vllm:num_requests_running"), 3);
  EXPECT_EQ(got("vllm:num_requests_waiting"), 2);
  EXPECT_EQ(got("lapidary:num_requests_paused"), 1);
  EXPECT_EQ(got("vllm:num_preemptions_total"), 5);
  EXPECT_EQ(got("vllm:kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(got("lapidary:kv_pages", {"pool=\"sliding\"", "state=\"shared\""}), 2);
  EXPECT_EQ(got("lapidary:kv_pages", {"pool=\"full\"", "state=\"cached\""}), 4);
  EXPECT_EQ(got("vllm:prefix_cache_queries_total"), 100);
  EXPECT_EQ(got("vllm:prefix_cache_hits_total"), 60);
  EXPECT_EQ(got("lapidary:prefix_cache_prompts_total", {"outcome=\"window_lost\""}), 2);
  EXPECT_EQ(got("lapidary:prefix_cache_prompts_total", {"outcome=\"cold\""}), 0);
  EXPECT_EQ(got("lapidary:decode_gaps_total", {"le=\"0.02\""}), 10);
  EXPECT_EQ(got("lapidary:decode_gaps_total", {"le=\"0.05\""}), 12);
  EXPECT_EQ(got("lapidary:decode_gaps_total", {"le=\"+Inf\""}), 13);
  EXPECT_EQ(got("lapidary:decode_gap_worst_seconds"), 7.5);
  EXPECT_EQ(got("lapidary:http_connections"), 11);
  EXPECT_EQ(got("lapidary:http_connections_total", {"timed_out"}), 4);
  view.running = 0;
  EXPECT_EQ(got("vllm:num_requests_running"), 0);
}

TEST(Metrics, NamesAreWellFormedUniqueAndDescribed) {
  Metrics metrics(about());
  std::set<std::string> names;
  for (const MetricDescription& metric : metrics.describe()) {
    EXPECT_TRUE(names.insert(metric.name).second) << metric.name;
    EXPECT_TRUE(metric.name.starts_with("vllm:") || metric.name.starts_with("lapidary:")) << metric.name;
    EXPECT_EQ(metric.name.ends_with("_total"), metric.type == "counter") << metric.name;
    EXPECT_NE(metric.labels.find("model_name"), std::string::npos) << metric.name;
    EXPECT_FALSE(metric.help.empty()) << metric.name;
  }
  metrics.on_request(answered("/v1/models", 200));
  std::set<std::string> typed;
  std::istringstream lines(metrics.text({}, {}));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    const std::string name = line.substr(7, line.rfind(' ') - 7);
    EXPECT_TRUE(names.contains(name)) << name;
    typed.insert(name);
  }
  EXPECT_GE(typed.size(), 30u);
}

TEST(Metrics, TheDocumentListsThemAllAndNoOthers) {
  const Metrics metrics(about());
  std::set<std::string> names, documented;
  for (const MetricDescription& metric : metrics.describe()) names.insert(metric.name);
  std::ifstream file(std::string(LAPIDARY_TEST_DATA) + "/../../docs/serving.md");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `vllm:") && !line.starts_with("| `lapidary:")) continue;
    documented.insert(line.substr(3, line.find('`', 3) - 3));
  }
  EXPECT_EQ(documented, names);
}

TEST(Metrics, RequestsAreCountedFromManyThreads) {
  Metrics metrics(about());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        metrics.on_request(answered("/v1/models", i % 2 == 0 ? 200 : 400));
        if (i % 50 == 0) metrics.text({}, {});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(value(metrics, "lapidary:http_requests_total", {"/v1/models", "status=\"200\""}), 400);
  EXPECT_EQ(value(metrics, "lapidary:http_requests_total", {"status=\"400\""}), 400);
}

}  // namespace
}  // namespace lapidary::serve
