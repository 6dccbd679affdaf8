// What happens to requests on their way: routes, full queues, peers that leave or read slowly, records.
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "serve/served.h"

namespace lapidary::serve::test {
namespace {

const char* const kHello = R"({"prompt": "hello", "max_tokens": 12, "temperature": 0})";

TEST(ApiRequests, UnknownPathsNameTheNearest) {
  Served served;
  served.refused("/v1/chat/completion", "{}", 404, "", "did you mean /v1/chat/completions?");
  served.refused("/chat/completions", "{}", 404, "", "did you mean /v1/chat/completions?");
  served.refused("/zzzzzzzzzzzzzzzzzzzzzz", "{}", 404, "", "there is no");
}

TEST(ApiRequests, OtherMethodsAreToldWhatIsAllowed) {
  Served served;
  for (const char* method : {"GET", "DELETE", "PUT"}) {
    const auto exchange = served.send(method, kTextPath, "");
    ASSERT_TRUE(exchange->wait());
    EXPECT_EQ(exchange->got().status, 405);
    EXPECT_EQ(exchange->got().headers, (std::vector<std::pair<std::string, std::string>>{{"Allow", "POST"}}));
  }
}

TEST(ApiRequests, AFullQueueIsA429WithRetryAfter) {
  Served served({.max_running = 2, .max_queued = 2});
  const auto exchange =
      served.send("POST", kTextPath, R"({"prompt": ["a","b","c","d","e","f","g","h"], "max_tokens": 400})");
  ASSERT_TRUE(exchange->wait());
  EXPECT_EQ(exchange->got().status, 429) << exchange->got().body;
  EXPECT_EQ(exchange->got().headers,
            (std::vector<std::pair<std::string, std::string>>{{"Retry-After", "1"}}));
  EXPECT_EQ(served.answer(kTextPath, kHello).status, 200);
}

TEST(ApiRequests, AServerThatDrainsSays503) {
  Served served;
  served.set_ready(false);
  served.scheduler().drain(Clock::now() + std::chrono::seconds(10));
  served.refused(kTextPath, kHello, 503, "", "no new requests");
}

TEST(ApiRequests, APeerThatLeavesFreesItsPages) {
  Served served;
  const auto exchange = served.send(
      "POST", kChatPath,
      R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 480, "stream": true, "n": 2})");
  ASSERT_TRUE(exchange->wait_pieces(3));
  exchange->leave();
  ASSERT_EQ(served.wait_records(1).size(), 1u);
  const RequestRecord record = served.records().all()[0];
  EXPECT_EQ(record.status, 499);
  ASSERT_EQ(record.texts.size(), 2u);
  served.scheduler().clear_cache();
  const SchedulerView view = served.scheduler().view();
  EXPECT_EQ(view.running + view.queued + view.paused, 0);
  EXPECT_EQ(view.room.in_use, 0);
}

TEST(ApiRequests, APeerThatLeftBeforeItsRequestRanCostsNothing) {
  Served served;
  const auto exchange = std::make_shared<FakeExchange>();
  exchange->leave();
  served.send("POST", kTextPath, R"({"prompt": "hello", "max_tokens": 480})", exchange);
  ASSERT_EQ(served.wait_records(1).size(), 1u);
  EXPECT_EQ(served.records().all()[0].status, 499);
}

TEST(ApiRequests, ASlowReaderIsWaitedForAndLosesNothing) {
  Served served;
  const char* body = R"({"prompt": "hello", "max_tokens": 60, "temperature": 0, "stream": true})";
  const auto quick = served.send("POST", kTextPath, body);
  ASSERT_TRUE(quick->wait());
  const auto slow = std::make_shared<FakeExchange>();
  slow->block(Exchange::kSlowReader + 1);
  served.send("POST", kTextPath, body, slow);
  for (int i = 0; i < 6000 && served.scheduler().view().paused == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(served.scheduler().view().paused, 1);
  EXPECT_FALSE(slow->done());
  EXPECT_LE(slow->pieces().size(), 3u) << "nothing is made for a reader that does not read";
  slow->unblock();
  ASSERT_TRUE(slow->wait());
  EXPECT_EQ(Served::read_stream(*slow).joined("text"), Served::read_stream(*quick).joined("text"));
}

TEST(ApiRequests, ARequestThatTakesTooLongIsEnded) {
  Served served({.limits = {.request_seconds = 1e-6}});
  const auto exchange = served.send("POST", kTextPath, kHello);
  ASSERT_TRUE(exchange->wait());
  EXPECT_EQ(exchange->got().status, 504) << exchange->got().body;
}

TEST(ApiRequests, RecordsSayWhatHappenedAndNothingOfTheText) {
  Served served;
  served.answer(kTextPath, kHello);
  served.wait_records(1);  // a record follows its answer
  served.answer(kTextPath, R"({"prompt": "a secret", "tmperature": 1})");
  const std::vector<RequestRecord> records = served.wait_records(2);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].endpoint, kTextPath);
  EXPECT_EQ(records[0].method, "POST");
  EXPECT_EQ(records[0].client, "test");
  EXPECT_EQ(records[0].status, 200);
  EXPECT_FALSE(records[0].stream);
  EXPECT_GE(records[0].first_token_seconds, 0);
  EXPECT_EQ(records[0].token_gaps.size(), 11u);
  ASSERT_EQ(records[0].texts.size(), 1u);
  EXPECT_EQ(records[0].texts[0].generated_tokens, 12);
  EXPECT_EQ(records[1].status, 400);
  EXPECT_EQ(records[1].error_code, "unknown_field");
  EXPECT_EQ(records[1].error_param, "tmperature");
  EXPECT_EQ(records[1].first_token_seconds, -1);
}

TEST(ApiRequests, ManyAtOnceGetWhatEachGetsAlone) {
  Served served;
  std::vector<std::string> bodies;
  for (int i = 0; i < 12; ++i) {
    bodies.push_back(json::serialize(json::object{{"prompt", "p" + std::to_string(i % 5)},
                                                  {"max_tokens", 8 + i},
                                                  {"temperature", i % 2},
                                                  {"seed", i},
                                                  {"logprobs", 2}}));
  }
  const auto choices = [](const HttpAnswer& answer) {
    return json::serialize(json::parse(answer.body).at("choices"));
  };
  std::vector<std::string> alone;
  for (const std::string& body : bodies) alone.push_back(choices(served.answer(kTextPath, body)));
  std::vector<std::shared_ptr<FakeExchange>> exchanges(bodies.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < bodies.size(); ++i) {
    threads.emplace_back([&, i] { exchanges[i] = served.send("POST", kTextPath, bodies[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < bodies.size(); ++i) {
    ASSERT_TRUE(exchanges[i]->wait());
    EXPECT_EQ(choices(exchanges[i]->got()), alone[i]) << bodies[i];
  }
}

}  // namespace
}  // namespace lapidary::serve::test
