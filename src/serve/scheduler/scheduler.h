// One engine for many jobs: continuous batching. A step takes one row of every text that is being generated
// and fills up with rows of prompts, as many as keep the step short. The engine's promise makes it exact:
// what a job gets does not depend on what runs beside it, on how its prompt is cut, or on whether the prefix
// cache had a part of it; a job that had to give back its pages is computed again and goes on as if nothing
// had been.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serve/cache/prefix_cache.h"
#include "serve/job.h"
#include "serve/state_store.h"

namespace lapidary::serve {

struct SchedulerOptions {
  int64_t max_running = 16;   // jobs that are computed at once
  int64_t max_queued = 256;   // jobs that wait; more are refused
  int64_t step_rows = 256;    // most rows of a step: the engine's chunk
  double step_seconds = 0.1;  // aim for steps with prompt rows while texts are being generated
  int64_t vocab_size = 0;     // logits with a token: the lesser of tokenizer's and model's
  PrefixCacheOptions cache;
  Hash128 model;                                // of saved states
  StateStore* store = nullptr;                  // absent: the cache ends with the server
  std::function<void(const std::string&)> log;  // one line, for what an operator should know; may be empty
};

using Ticket = uint64_t;

struct RunningView {  // for GET /v1/kv and /metrics
  Ticket ticket = 0;
  std::string request;
  int64_t index = 0;
  std::string state;  // "queued", "prefill", "decode", "paused"
  int64_t prompt_tokens = 0, cached_tokens = 0, computed_tokens = 0, generated_tokens = 0;
  int64_t bytes = 0;  // of its own, and of what it shares
  int64_t shared_bytes = 0;
};

struct PoolView {    // pages of one kind of layer
  std::string name;  // "sliding", "full"
  int64_t page_bytes = 0, pages_in_use = 0;
  int64_t pages_shared = 0;  // of texts that run, and of others or the prefix cache too
  int64_t pages_cached = 0;  // of the prefix cache alone; the rest is of one text that runs
  int64_t bytes_in_use = 0;
};

struct SchedulerView {
  int64_t running = 0, queued = 0, paused = 0;
  KvRoom room;
  std::vector<PoolView> pools;
  std::vector<RunningView> jobs;
  std::vector<PrefixEntryView> entries;
  PrefixStats cache;
  int64_t steps = 0, prompt_rows = 0, decode_rows = 0, preemptions = 0;
  double busy_seconds = 0;          // inside the engine
  std::vector<int64_t> gap_counts;  // of gaps between steps of a generated text, by kGapBounds
  double worst_gap_seconds = 0;
};
inline constexpr double kGapBounds[] = {0.005, 0.01, 0.02, 0.05, 0.1,
                                        0.2,   0.5,  1,    2,    5};  // seconds; more: last

class Scheduler {
 public:
  // Starts the thread that owns the engine from now on. REQUIRES: engine (with at least max_running +
  // cache.max_entries + 1 sequences and a chunk of step_rows) and store outlive it.
  Scheduler(Engine& engine, SchedulerOptions options);
  ~Scheduler();  // stop()
  Scheduler(const Scheduler&) = delete;

  // All of these may be called from any thread.

  // The texts of one request, one after the other: all are taken or none. Error(usage) on an empty prompt or
  // bad sampling parameters; Error(limit) naming what is exceeded: a job that could never fit the context or
  // the KV memory, a full queue (is_busy() tells it apart), a server that is going down.
  struct Order {
    Job job;
    std::shared_ptr<JobSink> sink;
  };
  std::vector<Ticket> submit(std::vector<Order> orders);
  bool has_room_for(size_t jobs) const;  // in the queue, and not draining
  void cancel(Ticket ticket);            // its pages are free before the next step; on_end(cancelled) follows
  void resume(Ticket ticket);            // after Next::pause

  // No new jobs; returns when all are through, or with false at the deadline, when the rest has been ended
  // with EndReason::shutdown.
  bool drain(Clock::time_point deadline);
  void stop();  // ends what runs, saves the cache when there is a store, joins the thread; idempotent

  int64_t
  save_cache();  // to the store, now, between two steps: tokens held. Error(usage) without one, Error(io)
  void clear_cache();
  SchedulerView view() const;  // taken between two steps
  bool failed() const;         // the engine's thread ended by an error: the server is not ready any more

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary::serve
