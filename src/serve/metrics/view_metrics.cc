#include "serve/metrics/view_metrics.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace lapidary::serve {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  explicit Families(std::string model) : model_(std::move(model)) {}

  // Begins a family; add() goes to the last one begun.
  Families& gauge(const char* name, const char* help) { return begin(MetricType::Gauge, name, help); }
  Families& counter(const char* name, const char* help) { return begin(MetricType::Counter, name, help); }
  Families& add(double value, Labels labels = {}) {
    MetricFamily& family = families_.back();
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.label.push_back({"model_name", model_});
    if (family.type == MetricType::Gauge) {
      metric.gauge.value = value;
    } else {
      metric.counter.value = value;
    }
    family.metric.push_back(std::move(metric));
    return *this;
  }
  Families& add(int64_t value, Labels labels = {}) {
    return add(static_cast<double>(value), std::move(labels));
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  Families& begin(MetricType type, const char* name, const char* help) {
    MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    families_.push_back(std::move(family));
    return *this;
  }
  std::string model_;
  std::vector<MetricFamily> families_;
};

void add_load(Families& out, const SchedulerView& view) {
  out.gauge("vllm:num_requests_running", "Texts that are being computed.").add(view.running);
  out.gauge("vllm:num_requests_waiting", "Texts that wait in the queue.").add(view.queued);
  out.gauge("lapidary:num_requests_paused", "Texts whose client reads too slowly; they hold their pages.")
      .add(view.paused);
  out.counter("vllm:num_preemptions_total", "Texts that gave their pages back and were computed again.")
      .add(view.preemptions);
  out.counter("lapidary:engine_steps_total", "Steps of the engine.").add(view.steps);
  out.counter("lapidary:engine_rows_total", "Rows that went through the engine, by kind.")
      .add(view.prompt_rows, {{"kind", "prompt"}})
      .add(view.decode_rows, {{"kind", "decode"}});
  out.counter("lapidary:engine_busy_seconds_total", "Seconds spent inside the engine.")
      .add(view.busy_seconds);
}

void add_memory(Families& out, const SchedulerView& view) {
  const double total = static_cast<double>(view.room.total);
  out.gauge("vllm:kv_cache_usage_perc", "Part of the KV memory that is in use, 0 to 1.")
      .add(total > 0 ? static_cast<double>(view.room.in_use) / total : 0.0);
  out.gauge("lapidary:kv_bytes", "KV memory: in all, and in use.")
      .add(view.room.total, {{"kind", "total"}})
      .add(view.room.in_use, {{"kind", "in_use"}});
  out.gauge("lapidary:kv_pages",
            "Pages of each pool: in use; of them shared by running texts with others, and held by the prefix "
            "cache alone.");
  for (const PoolView& pool : view.pools) {
    out.add(pool.pages_in_use, {{"pool", pool.name}, {"state", "in_use"}})
        .add(pool.pages_shared, {{"pool", pool.name}, {"state", "shared"}})
        .add(pool.pages_cached, {{"pool", pool.name}, {"state", "cached"}});
  }
  out.gauge("lapidary:kv_page_bytes", "Bytes of one page of each pool.");
  for (const PoolView& pool : view.pools) out.add(pool.page_bytes, {{"pool", pool.name}});
}

void add_cache(Families& out, const PrefixStats& cache) {
  out.counter("vllm:prefix_cache_queries_total", "Prompt tokens that were looked up in the prefix cache.")
      .add(cache.prompt_tokens);
  out.counter("vllm:prefix_cache_hits_total", "Of them, tokens that it had.").add(cache.cached_tokens);
  out.counter("lapidary:prefix_cache_prompts_total",
              "Prompts by what the prefix cache had for them: hits are whole and extended, the rest says why "
              "there was no more.");
  for (const Reuse reuse : kReuses) {
    const auto found = cache.prompts.find(reuse);
    out.add(found == cache.prompts.end() ? int64_t{0} : found->second,
            {{"outcome", std::string(reuse_name(reuse))}});
  }
  out.counter("lapidary:prefix_cache_evictions_total", "Entries that had to make room.").add(cache.evictions);
  out.gauge("lapidary:prefix_cache_entries", "Sequences that the prefix cache holds.").add(cache.entries);
  out.gauge("lapidary:prefix_cache_bytes", "Bytes that evicting all of them would free.").add(cache.bytes);
  out.gauge("lapidary:prefix_cache_restored_entries", "Entries that were restored from disk at the start.")
      .add(cache.restored_entries);
  out.gauge("lapidary:prefix_cache_restored_tokens", "Tokens of these entries.").add(cache.restored_tokens);
  out.gauge("lapidary:prefix_cache_refused_states",
            "Saved states that were damaged or of another model, and left alone.")
      .add(cache.refused_states);
}

void add_gaps(Families& out, const SchedulerView& view) {
  out.counter("lapidary:decode_gaps_total",
              "Gaps between the steps of a text that is being generated, cumulative by upper bound in "
              "seconds.");
  int64_t below = 0;
  for (size_t i = 0; i < view.gap_counts.size(); ++i) {
    below += view.gap_counts[i];
    out.add(below, {{"le", i < std::size(kGapBounds) ? fmt::format("{}", kGapBounds[i]) : "+Inf"}});
  }
  out.gauge("lapidary:decode_gap_worst_seconds", "The longest of these gaps.").add(view.worst_gap_seconds);
}

void add_http(Families& out, const HttpStats& http) {
  out.gauge("lapidary:http_connections", "Open connections.").add(http.connections);
  out.counter("lapidary:http_connections_total", "Connections, by what became of them.")
      .add(http.accepted, {{"outcome", "accepted"}})
      .add(http.refused, {{"outcome", "refused"}})
      .add(http.timed_out, {{"outcome", "timed_out"}});
}

}  // namespace

std::vector<MetricFamily> view_metrics(const std::string& model, const SchedulerView& scheduler,
                                       const HttpStats& http) {
  Families out(model);
  add_load(out, scheduler);
  add_memory(out, scheduler);
  add_cache(out, scheduler.cache);
  add_gaps(out, scheduler);
  add_http(out, http);
  return out.take();
}

}  // namespace lapidary::serve
