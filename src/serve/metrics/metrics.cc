#include "serve/metrics/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "serve/metrics/view_metrics.h"

namespace lapidary::serve {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

using Bounds = Histogram::BucketBoundaries;
// Seconds from a token at full speed to a request that takes minutes.
const Bounds kLatency = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                         0.75,  1,      2.5,   5,    7.5,  10,   20,   40,   80,  160,  640};
const Bounds kTokens = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

const char* type_name(MetricType type) {
  switch (type) {
    case MetricType::Counter: return "counter";
    case MetricType::Histogram: return "histogram";
    default: return "gauge";
  }
}

}  // namespace

const char* finished_reason(EndReason reason) {
  switch (reason) {
    case EndReason::stop_token:
    case EndReason::complete:
    case EndReason::sink: return "stop";
    case EndReason::max_tokens:
    case EndReason::context: return "length";
    case EndReason::cancelled:
    case EndReason::deadline:
    case EndReason::shutdown: return "abort";
    case EndReason::error: break;
  }
  return "error";
}

struct Metrics::Impl {
  explicit Impl(const About& about)
      : model(about.model),
        endpoints(about.endpoints.begin(), about.endpoints.end()),
        prompt_tokens(
            counter("vllm:prompt_tokens_total", "Prompt tokens of texts that ended, cached ones included.")),
        generation_tokens(counter("vllm:generation_tokens_total", "Generated tokens of texts that ended.")),
        success(counters("vllm:request_success_total", "Texts that ended, by vLLM's reasons.")),
        first_token(histogram("vllm:time_to_first_token_seconds",
                              "From the whole request to its first generated token.", kLatency)),
        token_gap(histogram("vllm:inter_token_latency_seconds",
                            "Between two tokens of one text, as they were handed to HTTP.", kLatency)),
        per_token(histogram("vllm:request_time_per_output_token_seconds",
                            "Mean time between the tokens of a text.", kLatency)),
        whole(histogram("vllm:e2e_request_latency_seconds",
                        "From the whole request to its last byte, of requests that generate, score or embed.",
                        kLatency)),
        queue(histogram("vllm:request_queue_time_seconds", "Wait of a text in the queue.", kLatency)),
        prefill(histogram("vllm:request_prefill_time_seconds", "From the queue to the first token of a text.",
                          kLatency)),
        decode(histogram("vllm:request_decode_time_seconds", "From the first token of a text to its last.",
                         kLatency)),
        request_prompt(histogram("vllm:request_prompt_tokens", "Prompt tokens of a text.", kTokens)),
        request_generation(
            histogram("vllm:request_generation_tokens", "Generated tokens of a text.", kTokens)),
        loops(counter("lapidary:loops_ended_total", "Texts that the loop guard ended.")),
        reserved(counter("lapidary:reserved_wanted_total",
                         "Tokens at which the model's best was a reserved one, while the guard is on.")),
        ends(counters("lapidary:text_ends_total", "Texts that ended, by our reasons.")),
        requests(counters("lapidary:http_requests_total", "Answered requests, by route and status.")) {
    // All values of these labels are there from the start, so that rates are right from the first event on.
    for (const char* reason : {"stop", "length", "abort", "error"}) {
      success.Add({{"finished_reason", reason}});
    }
    for (const EndReason reason : {EndReason::stop_token, EndReason::max_tokens, EndReason::context,
                                   EndReason::complete, EndReason::sink, EndReason::cancelled,
                                   EndReason::deadline, EndReason::error, EndReason::shutdown}) {
      ends.Add({{"reason", std::string(end_reason_name(reason))}});
    }
    for (const std::string& endpoint : endpoints) requests.Add({{"endpoint", endpoint}, {"status", "200"}});
    prometheus::BuildGauge()
        .Name("lapidary:build_info")
        .Help("1; its labels say what runs here.")
        .Labels(labels())
        .Register(registry)
        .Add({{"version", about.version}, {"numeric_mode", about.numeric_mode}})
        .Set(1);
  }

  prometheus::Labels labels() const { return {{"model_name", model}}; }
  Family<Counter>& counters(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Labels(labels()).Register(registry);
  }
  Counter& counter(const char* name, const char* help) { return counters(name, help).Add({}); }
  Histogram& histogram(const char* name, const char* help, const Bounds& bounds) {
    return prometheus::BuildHistogram().Name(name).Help(help).Labels(labels()).Register(registry).Add({},
                                                                                                      bounds);
  }

  void add_text(const JobEnd& end) {
    success.Add({{"finished_reason", finished_reason(end.reason)}}).Increment();
    ends.Add({{"reason", std::string(end_reason_name(end.reason))}}).Increment();
    prompt_tokens.Increment(static_cast<double>(end.prompt_tokens));
    generation_tokens.Increment(static_cast<double>(end.generated_tokens));
    request_prompt.Observe(static_cast<double>(end.prompt_tokens));
    request_generation.Observe(static_cast<double>(end.generated_tokens));
    queue.Observe(end.queue_seconds);
    prefill.Observe(end.prefill_seconds);
    if (end.generated_tokens > 0) decode.Observe(end.decode_seconds);
    if (end.generated_tokens > 1) {
      per_token.Observe(end.decode_seconds / static_cast<double>(end.generated_tokens - 1));
    }
  }

  std::vector<MetricFamily> all(const SchedulerView& scheduler, const HttpStats& http) const {
    std::vector<MetricFamily> families = registry.Collect();
    for (MetricFamily& family : view_metrics(model, scheduler, http)) families.push_back(std::move(family));
    std::sort(families.begin(), families.end(),
              [](const MetricFamily& a, const MetricFamily& b) { return a.name < b.name; });
    return families;
  }

  std::string model;
  std::set<std::string, std::less<>> endpoints;
  prometheus::Registry registry;
  Counter &prompt_tokens, &generation_tokens;
  Family<Counter>& success;
  Histogram &first_token, &token_gap, &per_token, &whole, &queue, &prefill, &decode, &request_prompt,
      &request_generation;
  Counter &loops, &reserved;
  Family<Counter>&ends, &requests;
};

Metrics::Metrics(const About& about) : impl_(std::make_unique<Impl>(about)) {}
Metrics::~Metrics() = default;

void Metrics::on_request(const RequestRecord& record) {
  const bool known_status = record.status >= 100 && record.status <= 599;
  impl_->requests
      .Add({{"endpoint", impl_->endpoints.contains(record.endpoint) ? record.endpoint : "other"},
            {"status", known_status ? fmt::format("{}", record.status) : "other"}})
      .Increment();
  for (const JobEnd& end : record.texts) impl_->add_text(end);
  impl_->loops.Increment(static_cast<double>(record.loops_ended));
  impl_->reserved.Increment(static_cast<double>(record.reserved_wanted));
  for (const double gap : record.token_gaps) impl_->token_gap.Observe(gap);
  if (record.first_token_seconds >= 0) impl_->first_token.Observe(record.first_token_seconds);
  if (!record.texts.empty()) impl_->whole.Observe(record.seconds);
}

std::string Metrics::text(const SchedulerView& scheduler, const HttpStats& http) const {
  return prometheus::TextSerializer().Serialize(impl_->all(scheduler, http));
}

std::vector<MetricDescription> Metrics::describe() const {
  std::vector<MetricDescription> out;
  SchedulerView view;
  view.pools.resize(1);
  view.gap_counts.resize(1);
  for (const MetricFamily& family : impl_->all(view, {})) {
    std::set<std::string> names;
    for (const auto& metric : family.metric) {
      for (const auto& label : metric.label) names.insert(label.name);
    }
    out.push_back(
        {family.name, type_name(family.type), fmt::format("{}", fmt::join(names, ", ")), family.help});
  }
  return out;
}

}  // namespace lapidary::serve
