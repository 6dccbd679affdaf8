// What a job gets does not depend on what runs beside it, on the cache, or on how often it lost its pages.
#include <gtest/gtest.h>

#include <thread>

#include "serve/scheduler_harness.h"

namespace lapidary::serve::test {
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

TEST_P(SchedulerExact, AlsoWhenPagesRunOut) {
  for (const bool cache : {true, false}) {
    const int64_t bytes = [&] {
      const Served measured(GetParam(), {.cache = cache});
      return measured.engine->kv_bytes_at_length(200) * 5 / 4;
    }();
    Served served(GetParam(), {.kv_bytes = bytes, .cache = cache});
    run_all(served);
    const SchedulerView view = served.scheduler->view();
    EXPECT_GT(view.preemptions, 0) << cache;
    EXPECT_LE(view.room.total, bytes);
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
      std::this_thread::yield();
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
}  // namespace lapidary::serve::test
