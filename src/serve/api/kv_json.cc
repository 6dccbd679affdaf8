#include "serve/api/kv_json.h"

#include <boost/json/array.hpp>
#include <iterator>
#include <utility>

#include "serve/api/service.h"

namespace lapidary::serve {
namespace {

namespace json = boost::json;

json::array pools_json(const std::vector<PoolView>& pools) {
  json::array out;
  for (const PoolView& pool : pools) {
    out.push_back(json::object{{"name", pool.name},
                               {"page_bytes", pool.page_bytes},
                               {"pages_in_use", pool.pages_in_use},
                               {"pages_shared", pool.pages_shared},
                               {"pages_cached", pool.pages_cached},
                               {"bytes_in_use", pool.bytes_in_use}});
  }
  return out;
}

json::array sequences_json(const std::vector<RunningView>& jobs) {
  json::array out;
  for (const RunningView& job : jobs) {
    out.push_back(json::object{{"request", job.request},
                               {"index", job.index},
                               {"state", job.state},
                               {"prompt_tokens", job.prompt_tokens},
                               {"cached_tokens", job.cached_tokens},
                               {"computed_tokens", job.computed_tokens},
                               {"generated_tokens", job.generated_tokens},
                               {"bytes", job.bytes},
                               {"shared_bytes", job.shared_bytes}});
  }
  return out;
}

json::object cache_json(const SchedulerView& view) {
  json::array entries;
  for (const PrefixEntryView& entry : view.entries) {
    entries.push_back(json::object{{"sequence", entry.sequence},
                                   {"tokens", entry.tokens},
                                   {"bytes", entry.bytes},
                                   {"hits", entry.hits},
                                   {"idle_seconds", entry.idle_seconds}});
  }
  json::object prompts;
  for (const Reuse reuse : kReuses) {
    const auto found = view.cache.prompts.find(reuse);
    prompts[reuse_name(reuse)] = found == view.cache.prompts.end() ? 0 : found->second;
  }
  return {{"entries", std::move(entries)},
          {"bytes", view.cache.bytes},
          {"evictions", view.cache.evictions},
          {"prompts", std::move(prompts)},
          {"prompt_tokens", view.cache.prompt_tokens},
          {"cached_tokens", view.cache.cached_tokens},
          {"restored_entries", view.cache.restored_entries},
          {"restored_tokens", view.cache.restored_tokens},
          {"refused_states", view.cache.refused_states}};
}

}  // namespace

json::object kv_json(const ServedModel& model, const SchedulerView& view) {
  return {{"object", "lapidary.kv"},
          {"model", model.name},
          {"numeric_mode", model.numeric_mode},
          {"context", model.context},
          {"running", view.running},
          {"queued", view.queued},
          {"paused", view.paused},
          {"room",
           {{"total_bytes", view.room.total},
            {"used_bytes", view.room.in_use},
            {"free_bytes", view.room.free()}}},
          {"pools", pools_json(view.pools)},
          {"sequences", sequences_json(view.jobs)},
          {"cache", cache_json(view)},
          {"totals",
           {{"steps", view.steps},
            {"prompt_rows", view.prompt_rows},
            {"decode_rows", view.decode_rows},
            {"preemptions", view.preemptions},
            {"busy_seconds", view.busy_seconds}}},
          {"gaps",
           {{"bounds_seconds", json::array(std::begin(kGapBounds), std::end(kGapBounds))},
            {"counts", json::array(view.gap_counts.begin(), view.gap_counts.end())},
            {"worst_seconds", view.worst_gap_seconds}}}};
}

}  // namespace lapidary::serve
