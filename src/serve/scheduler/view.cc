// What the scheduler shows of itself.
#include <algorithm>
#include <map>
#include <utility>

#include "serve/scheduler/batch_loop.h"

namespace lapidary::serve {
namespace {

// Pages by where they lie, so that one that several hold counts once.
class PageCount {
 public:
  void add(const KvPageView& page, bool by_job) {
    Page& seen = pages_[{page.sliding, page.pool_offset}];
    seen.shared = page.shared;
    seen.bytes = page.pool_bytes;
    seen.by_job = seen.by_job || by_job;
  }
  std::vector<PoolView> pools() const {
    std::map<bool, PoolView> pools;  // by whether it is the sliding layers'
    for (const auto& [place, page] : pages_) {
      PoolView& pool = pools[place.first];
      pool.name = place.first ? "sliding" : "full";
      pool.page_bytes = page.bytes;
      pool.pages_in_use++;
      pool.pages_shared += page.shared && page.by_job;
      pool.pages_cached += !page.by_job;
      pool.bytes_in_use += page.bytes;
    }
    std::vector<PoolView> views;
    for (auto& [sliding, pool] : pools) views.push_back(std::move(pool));
    return views;
  }

 private:
  struct Page {
    bool shared = false, by_job = false;
    int64_t bytes = 0;
  };
  std::map<std::pair<bool, int64_t>, Page> pages_;
};

std::string state_of(const Task& task) {
  if (task.paused) return "paused";
  if (!task.holds()) return "queued";
  return task.decodes() ? "decode" : "prefill";
}

}  // namespace

SchedulerView BatchLoop::view() const {
  SchedulerView view;
  PageCount pages;
  for_tasks([&](const Task& task) {
    (task.paused ? view.paused : task.holds() ? view.running : view.queued)++;
    RunningView job{.ticket = task.ticket,
                    .request = task.job.request,
                    .index = task.job.index,
                    .state = state_of(task),
                    .prompt_tokens = task.n_prompt,
                    .cached_tokens = task.end.cached_tokens,
                    .computed_tokens = task.length,
                    .generated_tokens = task.n_generated()};
    if (task.holds()) {
      engine_.for_each_page(task.sequence, [&](const KvPageView& page) {
        pages.add(page, true);
        job.bytes += page.pool_bytes;
        if (page.shared) job.shared_bytes += page.pool_bytes;
      });
    }
    view.jobs.push_back(std::move(job));
  });
  view.entries = cache_.entries();
  for (const PrefixEntryView& entry : view.entries)
    engine_.for_each_page(entry.sequence, [&](const KvPageView& page) { pages.add(page, false); });
  view.pools = pages.pools();
  view.room = engine_.kv_room();
  view.cache = cache_.stats();
  view.steps = steps_;
  view.prompt_rows = prompt_rows_;
  view.decode_rows = decode_rows_;
  view.preemptions = preemptions_;
  view.busy_seconds = busy_seconds_;
  view.gap_counts = gap_counts_;
  view.worst_gap_seconds = worst_gap_;
  return view;
}

}  // namespace lapidary::serve
