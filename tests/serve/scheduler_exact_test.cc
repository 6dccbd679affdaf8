// What a job gets does not depend on what runs beside it, on the cache, or on how often it lost its pages.
#include <gtest/gtest.h>

#include <thread>

#include "serve/scheduler_harness.h"

namespace lapidary::serve::scheduler_test {
namespace {

// The i-th of a mix: prompts of many lengths, some of which begin alike; greedy, drawn, penalised, biased and
// bound ones; with scores, prompt scores, embeddings.
Job mixed(int i) {
  const auto n = static_cast<size_t>(1 + i * 37 % 150);
  std::vector<TokenId> prompt = i % 3 == 0 ? text(0, 90) + text(i, 1 + n / 4) : text(i, n);
  Job job = generation(std::move(prompt), 4 + i * 11 % 44);
  job.client = i % 2 == 0 ? "even" : "odd";
  job.priority = i % 5 == 0 ? 1 : 0;
  if (i % 4 != 0) {
    job.sampling.temperature = 0.5f + 0.25f * static_cast<float>(i % 4);
    job.sampling.seed = static_cast<uint64_t>(i);
    job.sampling.stream = static_cast<uint64_t>(i % 2);
  }
  if (i % 5 == 1) job.sampling.top_k = 20;
  if (i % 5 == 2) job.sampling.top_p = 0.8f;
  if (i % 6 == 3) job.sampling.repetition_penalty = 1.3f;
  if (i % 6 == 4) job.sampling.frequency_penalty = 0.4f;
  if (i % 7 == 2) job.sampling.logit_bias = {{static_cast<int32_t>(i), 2.0f}, {40, -100.0f}};
  if (i % 2 == 1) job.logprobs = i % 4;
  if (i % 8 == 5) job.prompt_logprobs = i % 3;
  if (i % 10 == 6) job.constraint.emplace(matching("[a-f]{3,9}(x|yy)[0-9]+"));
  if (i % 10 == 8) job.constraint.emplace(matching("[a-z]{12}"));
  if (i % 10 == 7) {
    job.pooling = i % 20 == 7 ? Pooling::mean : Pooling::last;
    job.max_tokens = 0;
  }
  if (i % 9 == 4) job.reuse = false;
  job.stop_ids = {kEnd, 17, 99};
  return job;
}

constexpr int kJobs = 40;

class SchedulerExact : public testing::TestWithParam<std::string> {
 protected:
  static const std::vector<Result>& expected() {
    static std::map<std::string, std::vector<Result>> known;
    std::vector<Result>& results = known[GetParam()];
    if (!results.empty()) return results;
    const Checkpoint checkpoint = open_golden(GetParam());
    EngineOptions options = one_thread();
    options.max_sequences = 1;
    Engine engine(checkpoint.spec, *checkpoint.tensors, options);
    for (int i = 0; i < kJobs; i++) results.push_back(alone(engine, mixed(i)));
    return results;
  }
  static void run_all(Served& served) {
    std::vector<Scheduler::Order> orders;
    std::vector<std::shared_ptr<Keeper>> sinks;
    for (int i = 0; i < kJobs; i++) {
      sinks.push_back(std::make_shared<Keeper>());
      orders.push_back({mixed(i), sinks.back()});
    }
    served.scheduler->submit(std::move(orders));
    for (int i = 0; i < kJobs; i++)
      expect_same(sinks[static_cast<size_t>(i)]->wait(), expected()[static_cast<size_t>(i)],
                  "job " + std::to_string(i));
  }
};

TEST_P(SchedulerExact, ManyAtOnceGetWhatEachGetsAlone) {
  Served served(GetParam(), {});
  run_all(served);
  const SchedulerView view = served.scheduler->view();
  EXPECT_GT(view.cache.cached_tokens, 0);
  EXPECT_EQ(view.preemptions, 0);
  run_all(served);  // now with all that the first round left
  EXPECT_GT(served.scheduler->view().cache.cached_tokens, view.cache.cached_tokens);
  served.expect_no_leak();
}

TEST_P(SchedulerExact, AlsoWithoutACacheAndInSmallSteps) {
  Served served(GetParam(), {.max_running = 5, .step_rows = 7, .cache = false});
  run_all(served);
  EXPECT_EQ(served.scheduler->view().cache.cached_tokens, 0);
  served.expect_no_leak();
}

TEST_P(SchedulerExact, AlsoWhenOneJobNearlyFillsTheMemory) {
  const int64_t bytes = Served(GetParam(), {}).engine->kv_bytes_at_length(200) * 5 / 4;
  Served served(GetParam(), {.kv_bytes = bytes});
  run_all(served);
  EXPECT_LE(served.scheduler->view().room.total, bytes);
  served.expect_no_leak();
}

// Short prompts that grow long: more of them begin than there is room for at the end.
Job growing(int i) {
  Job job = generation(text(i, 20), 260);
  job.sampling.temperature = 1;
  job.sampling.seed = static_cast<uint64_t>(i);
  job.sampling.presence_penalty = i % 2 == 0 ? 0.3f : 0.0f;
  job.logprobs = 1;
  if (i == 3) job.constraint.emplace(matching("([a-e]{7} )+"));
  return job;
}

TEST_P(SchedulerExact, AlsoWhenPagesRunOut) {
  constexpr int kGrowing = 8;
  std::vector<Result> results;
  const Served measured(GetParam(), {});
  for (int i = 0; i < kGrowing; i++) {
    Engine engine(measured.checkpoint.spec, *measured.checkpoint.tensors, one_thread());
    results.push_back(alone(engine, growing(i)));
  }
  const int64_t bytes =
      std::max(measured.engine->kv_bytes_at_length(52) * 6, measured.engine->kv_bytes_at_length(300));
  for (const bool cache : {true, false}) {
    Served served(GetParam(), {.kv_bytes = bytes, .cache = cache});
    std::vector<std::shared_ptr<Keeper>> sinks;
    for (int i = 0; i < kGrowing; i++) sinks.push_back(served.send(growing(i)));
    int64_t preemptions = 0;
    for (size_t i = 0; i < sinks.size(); i++) {
      expect_same(sinks[i]->wait(), results[i], "job " + std::to_string(i));
      preemptions += sinks[i]->wait().end.preemptions;
    }
    EXPECT_GT(preemptions, 0) << cache;
    EXPECT_EQ(served.scheduler->view().preemptions, preemptions) << cache;
    served.expect_no_leak();
  }
}

TEST_P(SchedulerExact, AlsoWhenReadersPauseAndThreadsCompete) {
  Served served(GetParam(), {.max_running = 4});
  std::vector<std::shared_ptr<Keeper>> sinks(kJobs);
  std::vector<std::atomic<Ticket>> tickets(kJobs);
  std::atomic<bool> done = false;
  std::thread reader([&] {  // resumes whoever is paused, at any time
    while (!done) {
      for (const auto& ticket : tickets)
        if (ticket != 0) served.scheduler->resume(ticket);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  std::vector<std::thread> clients;
  for (int t = 0; t < 4; t++) {
    clients.emplace_back([&, t] {
      for (int i = t; i < kJobs; i += 4) {
        const auto at = static_cast<size_t>(i);
        sinks[at] = std::make_shared<Keeper>();
        if (i % 3 == 1)
          sinks[at]->at_token = [](size_t n) {
            return n % 3 == 0 ? JobSink::Next::pause : JobSink::Next::go_on;
          };
        std::vector<Scheduler::Order> orders;
        orders.push_back({mixed(i), sinks[at]});
        tickets[at] = served.scheduler->submit(std::move(orders)).at(0);
        if (i % 7 == 0) (void)served.scheduler->view();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < kJobs; i++)
    expect_same(sinks[static_cast<size_t>(i)]->wait(), expected()[static_cast<size_t>(i)],
                "job " + std::to_string(i));
  done = true;
  reader.join();
  served.expect_no_leak();
}

INSTANTIATE_TEST_SUITE_P(Models, SchedulerExact,
                         testing::Values("gemma3-tiny", "gemma4-e2b-tiny", "gemma4-26b-tiny", "llama-tiny"),
                         name_of_model);

}  // namespace
}  // namespace lapidary::serve::scheduler_test
