// Order, waiting, ends of every kind, refusals; and that nothing is left of a job that has ended.
#include "serve/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

#include "serve/memory_store.h"
#include "serve/scheduler_harness.h"
#include "spec/patched_tensors.h"

namespace lapidary::serve::scheduler_test {
namespace {

using Next = JobSink::Next;

// Holds the scheduler's thread at its first token until it is let go.
struct Blocker {
  std::shared_ptr<Keeper> sink = std::make_shared<Keeper>();
  Gate here, go;
  explicit Blocker(Served& served, int64_t tokens = 1) {
    sink->at_token = [this](size_t n) {
      if (n == 1) {
        here.open();
        go.pass();
      }
      return Next::go_on;
    };
    Job job = generation(text(99, 5), tokens);
    job.client = "blocker";
    served.send(std::move(job), sink);
    here.pass();
  }
};

// The order in which jobs began.
class Starts {
 public:
  std::shared_ptr<Keeper> sink(std::string name) {
    auto sink = std::make_shared<Keeper>();
    sink->at_start = [this, name = std::move(name)] { names_.push_back(name); };
    return sink;
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;  // the scheduler's thread; read when all have ended
};

Job of(const std::string& client, int seed, size_t n, int64_t priority = 0) {
  Job job = generation(text(seed, n), 2);
  job.client = client;
  job.priority = priority;
  return job;
}

TEST(SchedulerOrder, ClientsTakeTurnsByWorkThenPriorityThenArrival) {
  Served served("llama-tiny", {.max_running = 1});
  Blocker blocker(served);
  Starts starts;
  std::vector<std::shared_ptr<Keeper>> sinks;
  const auto send = [&](const std::string& name, Job job) {
    sinks.push_back(served.send(std::move(job), starts.sink(name)));
  };
  for (int i = 0; i < 4; i++) send("many" + std::to_string(i), of("many", i, 20));
  send("many urgent", of("many", 10, 20, 5));
  send("few", of("few", 11, 20));
  send("long", of("long", 12, 28));
  send("long2", of("long", 13, 5));
  blocker.go.open();
  for (const auto& sink : sinks) EXPECT_EQ(sink->reason(), EndReason::max_tokens);
  // A job costs its prompt and one more row. After the first three, "many" has 21 and "long" 29; then "many"
  // has 42.
  EXPECT_EQ(starts.names(), (std::vector<std::string>{"many urgent", "few", "long", "many0", "long2", "many1",
                                                      "many2", "many3"}));
  served.expect_no_leak();
}

TEST(SchedulerOrder, AShortPromptDoesNotWaitForALongOne) {
  Served served("llama-tiny", {.step_rows = 16});
  Blocker blocker(served);
  std::vector<std::string> first_tokens;
  const auto sink = [&](const std::string& name) {
    auto made = std::make_shared<Keeper>();
    made->at_token = [&first_tokens, name](size_t n) {
      if (n == 1) first_tokens.push_back(name);
      return Next::go_on;
    };
    return made;
  };
  const auto long_one = served.send(of("a", 1, 400), sink("long"));
  const auto middle = served.send(of("a", 2, 150), sink("middle"));
  const auto short_one = served.send(of("a", 3, 10), sink("short"));
  blocker.go.open();
  for (const auto& s : {long_one, middle, short_one}) EXPECT_EQ(s->reason(), EndReason::max_tokens);
  EXPECT_EQ(first_tokens, (std::vector<std::string>{"short", "middle", "long"}));
}

TEST(SchedulerOrder, TextsOfOnePromptCostOnePrefill) {
  for (const char* model : {"llama-tiny", "gemma3-tiny"}) {
    Served served(model, {});
    std::vector<Scheduler::Order> orders;
    std::vector<std::shared_ptr<Keeper>> sinks;
    for (uint64_t i = 0; i < 6; i++) {
      sinks.push_back(std::make_shared<Keeper>());
      Job job = generation(text(1, 200), 5);
      job.sampling.temperature = 1;
      job.sampling.stream = i;
      orders.push_back({std::move(job), sinks.back()});
    }
    served.scheduler->submit(std::move(orders));
    for (const auto& sink : sinks) sink->wait();
    const SchedulerView view = served.scheduler->view();
    EXPECT_EQ(view.prompt_rows, 200 + 5) << model;
    EXPECT_EQ(view.cache.cached_tokens, 5 * 199) << model;
    served.expect_no_leak();
  }
}

TEST(SchedulerOrder, APromptWaitsForWhatAnotherOneComputes) {
  for (const char* model : {"llama-tiny", "gemma3-tiny"}) {
    Served served(model, {});
    Blocker blocker(served);
    std::vector<std::shared_ptr<Keeper>> sinks;
    for (int i = 0; i < 4; i++) sinks.push_back(served.send(generation(text(1, 130) + text(10 + i, 20), 3)));
    blocker.go.open();
    for (const auto& sink : sinks) sink->wait();
    EXPECT_EQ(served.scheduler->view().prompt_rows, 5 + 130 + 4 * 20) << model;
    served.expect_no_leak();
  }
}

TEST(SchedulerEnds, CancelFreesPagesInEveryState) {
  Served served("gemma4-e2b-tiny", {.max_running = 2, .step_rows = 8});
  const auto idle = [&] {
    const SchedulerView view = served.scheduler->view();
    return view.jobs.empty() ? view.room.in_use : -1;
  };
  {  // waiting
    Blocker blocker(served, 50);
    const auto other = served.send(generation(text(5, 8), 50));
    const auto waiting = served.send(generation(text(6, 9), 5));
    served.scheduler->cancel(served.last);
    blocker.go.open();
    EXPECT_EQ(waiting->reason(), EndReason::cancelled);
    EXPECT_TRUE(waiting->wait().tokens.empty());
    EXPECT_EQ(other->reason(), EndReason::max_tokens);
    EXPECT_EQ(blocker.sink->reason(), EndReason::max_tokens);
  }
  served.scheduler->clear_cache();
  EXPECT_EQ(idle(), 0);
  {  // in its prompt, with neighbours: the blocker's first token comes while the long prompt is under way
    const auto sink = std::make_shared<Keeper>();
    Gate started, go_on;
    sink->at_start = [&] {
      started.open();
      go_on.pass();
    };
    served.send(generation(text(7, 300), 5), sink);
    started.pass();
    served.scheduler->cancel(served.last);
    go_on.open();
    EXPECT_EQ(sink->reason(), EndReason::cancelled);
    EXPECT_EQ(served.scheduler->view().prompt_rows, 5 + 8 + 8);  // one step of it
    EXPECT_EQ(idle(), 0);
  }
  {  // generating, from the sink itself
    const auto sink = std::make_shared<Keeper>();
    Gate knows;
    Ticket ticket = 0;
    sink->at_start = [&] { knows.pass(); };
    sink->at_token = [&](size_t n) {
      if (n == 3) served.scheduler->cancel(ticket);
      return Next::go_on;
    };
    served.send(generation(text(8, 20), 100), sink);
    ticket = served.last;
    knows.open();
    EXPECT_EQ(sink->reason(), EndReason::cancelled);
    EXPECT_EQ(sink->wait().tokens.size(), 3u);
  }
  served.scheduler->clear_cache();
  EXPECT_EQ(idle(), 0);
  {  // paused
    const auto sink = std::make_shared<Keeper>();
    sink->at_token = [](size_t) { return Next::pause; };
    served.send(generation(text(9, 20), 100), sink);
    while (served.scheduler->view().paused == 0) std::this_thread::yield();
    EXPECT_EQ(served.scheduler->view().jobs.at(0).state, "paused");
    served.scheduler->cancel(served.last);
    EXPECT_EQ(sink->reason(), EndReason::cancelled);
  }
  served.scheduler->cancel(served.last);  // of one that has ended, and of one that never was
  served.scheduler->cancel(12345);
  served.expect_no_leak();
}

TEST(SchedulerEnds, Deadlines) {
  Served served("llama-tiny", {.max_running = 1});
  Job late = generation(text(1, 10), 5);
  late.deadline = Clock::now() - std::chrono::seconds(1);
  EXPECT_EQ(served.send(std::move(late))->reason(), EndReason::deadline);
  // One that is paused has nobody to wake it but the deadline itself.
  Job slow = generation(text(1, 10), 5);
  slow.deadline = Clock::now() + std::chrono::milliseconds(50);
  const auto sink = std::make_shared<Keeper>();
  sink->at_token = [](size_t) { return Next::pause; };
  EXPECT_EQ(served.send(std::move(slow), sink)->reason(), EndReason::deadline);
  EXPECT_LE(sink->wait().tokens.size(), 1u);
  served.expect_no_leak();
}

TEST(SchedulerEnds, APausedJobMakesWayForOthersAndGoesOn) {
  Served served("gemma3-tiny", {.max_running = 1});
  const auto paused = std::make_shared<Keeper>();
  paused->at_token = [](size_t n) { return n == 2 ? Next::pause : Next::go_on; };
  served.send(generation(text(1, 40), 6), paused);
  const Ticket ticket = served.last;
  const auto other = served.send(generation(text(2, 40), 6));
  EXPECT_EQ(other->reason(), EndReason::max_tokens);
  EXPECT_FALSE(paused->ended());
  EXPECT_EQ(served.scheduler->view().preemptions, 1);
  served.scheduler->resume(ticket);
  EXPECT_EQ(paused->reason(), EndReason::max_tokens);
  EXPECT_EQ(paused->wait().end.preemptions, 1);
  const Checkpoint checkpoint = open_golden("gemma3-tiny");
  Engine engine(checkpoint.spec, *checkpoint.tensors, one_thread());
  expect_same(paused->wait(), alone(engine, generation(text(1, 40), 6)), "paused");
  served.expect_no_leak();
}

TEST(SchedulerEnds, SinkContextConstraintAndNothingToGenerate) {
  Served served("llama-tiny", {.context = 64});
  const auto sink = std::make_shared<Keeper>();
  sink->at_token = [](size_t n) { return n == 4 ? Next::stop : Next::go_on; };
  served.send(generation(text(1, 10), 20), sink);
  EXPECT_EQ(sink->reason(), EndReason::sink);
  EXPECT_EQ(sink->wait().tokens.size(), 4u);

  const auto full = served.send(generation(text(1, 60), 20));
  EXPECT_EQ(full->reason(), EndReason::context);
  EXPECT_EQ(full->wait().tokens.size(), 5u);

  Job bound = generation(text(1, 10), 20);
  bound.constraint.emplace(matching("[ab]{7}"));
  const auto complete = served.send(std::move(bound));
  EXPECT_EQ(complete->reason(), EndReason::complete);
  EXPECT_EQ(complete->wait().tokens.size(), 7u);

  const auto nothing = served.send(generation(text(1, 64), 0));
  EXPECT_EQ(nothing->reason(), EndReason::complete);
  EXPECT_EQ(nothing->wait().end.prompt_tokens, 64);
  served.expect_no_leak();
}

TEST(SchedulerEnds, WhatThrowsEndsItsOwnJobOnly) {
  Served served("llama-tiny", {});
  const auto good = served.send(generation(text(1, 30), 30));
  Job impossible = generation(text(2, 30), 30);  // the grammar wants what the bias forbids
  impossible.constraint.emplace(matching("[ab]{7}"));
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  impossible.sampling.logit_bias = {{'a', kNever}, {'b', kNever}};  // a byte's token has its number
  const auto bad = served.send(std::move(impossible));
  const auto thrower = std::make_shared<Keeper>();
  thrower->at_token = [](size_t n) -> Next {
    if (n == 3) throw std::runtime_error("a sink's own trouble");
    return Next::go_on;
  };
  served.send(generation(text(3, 30), 30), thrower);
  EXPECT_EQ(bad->reason(), EndReason::error);
  EXPECT_NE(bad->wait().end.error.find("allowed"), std::string::npos) << bad->wait().end.error;
  EXPECT_EQ(thrower->reason(), EndReason::error);
  EXPECT_EQ(thrower->wait().end.error, "a sink's own trouble");
  EXPECT_EQ(good->reason(), EndReason::max_tokens);
  EXPECT_FALSE(served.scheduler->failed());
  served.expect_no_leak();
}

TEST(SchedulerEnds, ADamagedRowEndsTheJobThatReadsItOnly) {
  Checkpoint checkpoint = open_golden("gemma4-e2b-tiny");
  PatchedTensors tensors(*checkpoint.tensors);
  const int64_t width = checkpoint.spec.n_layers() * checkpoint.spec.ple_dim;
  tensors.change({TensorKind::ple_embedding}, [&](std::vector<float>& values) {
    values[static_cast<size_t>(300 * width + 3)] = std::numeric_limits<float>::quiet_NaN();
  });
  const Checkpoint sound = open_golden("gemma4-e2b-tiny");
  Engine engine(sound.spec, *sound.tensors, one_thread());
  Served served(std::move(checkpoint), &tensors, {});
  Blocker blocker(served, 20);
  std::vector<std::shared_ptr<Keeper>> good;
  for (int i = 0; i < 3; i++) good.push_back(served.send(generation(text(i, 10), 10)));
  std::vector<TokenId> prompt = text(7, 9);
  prompt[4] = 300;
  const auto bad = served.send(generation(prompt, 10));
  blocker.go.open();
  EXPECT_EQ(bad->reason(), EndReason::error);
  EXPECT_NE(bad->wait().end.error.find("row 300"), std::string::npos) << bad->wait().end.error;
  for (int i = 0; i < 3; i++)
    expect_same(good[static_cast<size_t>(i)]->wait(), alone(engine, generation(text(i, 10), 10)),
                "beside it");
  EXPECT_EQ(blocker.sink->reason(), EndReason::max_tokens);
  EXPECT_FALSE(served.scheduler->failed());
  served.expect_no_leak();
}

TEST(SchedulerRefusals, NameWhatIsExceeded) {
  Served served("llama-tiny", {.max_running = 1, .max_queued = 2, .context = 128});
  const auto refuse = [&](Job job, ErrorCode code, const char* part) {
    expect_error([&] { served.send(std::move(job)); }, code, part);
  };
  refuse(generation({}, 5), ErrorCode::usage, "prompt is empty");
  refuse(generation(text(1, 128), 1), ErrorCode::limit, "128 tokens");
  refuse(generation(text(1, 129), 0), ErrorCode::limit, "129 tokens");
  refuse(generation({5, 320}, 1), ErrorCode::usage, "prompt token 1");
  refuse(generation({5, -1}, 1), ErrorCode::usage, "got -1");
  refuse(generation({5}, -1), ErrorCode::usage, "max_tokens");
  Job scored = generation({5, 300}, 0);
  scored.prompt_logprobs = 1;
  refuse(std::move(scored), ErrorCode::usage, "0 to 256");
  Job hot = generation({5}, 1);
  hot.sampling.temperature = -1;
  refuse(std::move(hot), ErrorCode::usage, "temperature");

  Blocker blocker(served);
  EXPECT_TRUE(served.scheduler->has_room_for(2));
  EXPECT_FALSE(served.scheduler->has_room_for(3));
  const auto one = served.send(generation(text(1, 5), 1)), two = served.send(generation(text(2, 5), 1));
  EXPECT_FALSE(served.scheduler->has_room_for(1));
  refuse(generation(text(3, 5), 1), ErrorCode::limit, "max_queued");
  blocker.go.open();
  one->wait();
  two->wait();
  EXPECT_TRUE(served.scheduler->has_room_for(3));

  Served small("llama-tiny", {.kv_bytes = served.engine->kv_bytes_at_length(64)});
  expect_error([&] { small.send(generation(text(1, 60), 40)); }, ErrorCode::limit, "bytes of KV pages");
  EXPECT_EQ(small.send(generation(text(1, 60), 4))->reason(), EndReason::max_tokens);
  expect_error([] { Served("llama-tiny", {.max_running = 8, .step_rows = 8}); }, ErrorCode::usage,
               "step_rows");
}

TEST(SchedulerLife, DrainsInTimeOrEndsTheRest) {
  Served served("llama-tiny", {});
  const auto sink = served.send(generation(text(1, 20), 30));
  EXPECT_TRUE(served.scheduler->drain(Clock::now() + std::chrono::minutes(5)));
  EXPECT_TRUE(sink->ended());
  EXPECT_EQ(sink->reason(), EndReason::max_tokens);
  EXPECT_FALSE(served.scheduler->has_room_for(1));
  expect_error([&] { served.send(generation(text(1, 20), 30)); }, ErrorCode::limit, "going down");

  Served stuck("llama-tiny", {});
  const auto paused = std::make_shared<Keeper>();
  paused->at_token = [](size_t) { return Next::pause; };
  stuck.send(generation(text(1, 20), 30), paused);
  EXPECT_FALSE(stuck.scheduler->drain(Clock::now() + std::chrono::milliseconds(30)));
  EXPECT_TRUE(paused->ended());
  EXPECT_EQ(paused->reason(), EndReason::shutdown);
}

TEST(SchedulerLife, StopEndsWhatRunsAndMayComeTwice) {
  Served served("llama-tiny", {});
  Blocker blocker(served, 400);
  const auto other = served.send(generation(text(2, 20), 400));
  std::thread stopper([&] { served.scheduler->stop(); });
  blocker.go.open();
  stopper.join();
  served.scheduler->stop();
  EXPECT_TRUE(blocker.sink->ended());
  EXPECT_TRUE(other->ended());
  EXPECT_EQ(served.scheduler->view().running, 0);
  expect_error([&] { served.scheduler->save_cache(); }, ErrorCode::usage, "no place");
  served.scheduler->clear_cache();
  EXPECT_EQ(served.engine->kv_room().in_use, 0);
}

TEST(SchedulerLife, WhatWasHeldOutlivesTheServer) {
  for (const char* model : {"llama-tiny", "gemma4-e2b-tiny"}) {
    MemoryStore store;
    const std::vector<TokenId> prompt = text(1, 100);
    std::vector<TokenId> said;
    {
      Served served(model, {.store = &store});
      said = served.send(generation(prompt, 10))->wait().tokens;
      served.scheduler->stop();
    }
    Served served(model, {.store = &store});
    EXPECT_GT(served.scheduler->view().cache.restored_tokens, 0) << model;
    const auto next = served.send(generation(prompt + said + text(2, 7), 10));
    next->wait();
    // The last token was drawn, and never fed.
    EXPECT_EQ(next->wait().end.cached_tokens, 109) << model;
    EXPECT_EQ(next->wait().end.reuse, Reuse::extended) << model;
    const Checkpoint checkpoint = open_golden(model);
    Engine engine(checkpoint.spec, *checkpoint.tensors, one_thread());
    expect_same(next->wait(), alone(engine, generation(prompt + said + text(2, 7), 10)), model);
    EXPECT_GE(served.scheduler->save_cache(), 109) << model;
    served.expect_no_leak();
  }
}

TEST(SchedulerShows, JobsPagesAndGaps) {
  Served served("gemma3-tiny", {});
  const auto paused = std::make_shared<Keeper>();
  paused->at_token = [](size_t n) { return n == 5 ? Next::pause : Next::go_on; };
  Job job = generation(text(1, 70), 30);
  job.request = "req-1";
  job.index = 2;
  served.send(std::move(job), paused);
  while (served.scheduler->view().paused == 0) std::this_thread::yield();
  const SchedulerView view = served.scheduler->view();
  ASSERT_EQ(view.jobs.size(), 1u);
  const RunningView& shown = view.jobs[0];
  EXPECT_EQ(shown.ticket, served.last);
  EXPECT_EQ(shown.request, "req-1");
  EXPECT_EQ(shown.index, 2);
  EXPECT_EQ(shown.prompt_tokens, 70);
  EXPECT_EQ(shown.generated_tokens, 5);
  EXPECT_EQ(shown.computed_tokens, 74);
  EXPECT_GT(shown.bytes, shown.shared_bytes);
  ASSERT_EQ(view.pools.size(), 2u);
  int64_t bytes = 0;
  for (const PoolView& pool : view.pools) {
    EXPECT_EQ(pool.bytes_in_use, pool.pages_in_use * pool.page_bytes);
    EXPECT_GT(pool.pages_in_use, 0);
    bytes += pool.bytes_in_use;
  }
  EXPECT_EQ(bytes, view.room.in_use);
  EXPECT_EQ(view.prompt_rows, 70);
  EXPECT_EQ(view.decode_rows, 4);
  int64_t gaps = 0;
  for (const int64_t count : view.gap_counts) gaps += count;
  EXPECT_EQ(gaps, 4);
  EXPECT_GT(view.worst_gap_seconds, 0);
  served.scheduler->cancel(served.last);
  paused->wait();
  // The prompt's mark is the cache's alone now.
  const SchedulerView after = served.scheduler->view();
  for (const PoolView& pool : after.pools) EXPECT_EQ(pool.pages_cached, pool.pages_in_use);
  EXPECT_EQ(after.cache.bytes, after.room.in_use);
  served.expect_no_leak();
}

}  // namespace
}  // namespace lapidary::serve::scheduler_test
