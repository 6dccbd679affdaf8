// The API on a small golden model: engine, scheduler and all, with exchanges made by the tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <boost/json.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "serve/api/api.h"
#include "serve/fake_exchange.h"
#include "support/delimited_vocabulary.h"
#include "support/golden_models.h"

namespace lapidary::serve::test {

namespace json = boost::json;
using namespace lapidary::test;

// Keeps every record.
class Records : public Observer {
 public:
  void on_request(const RequestRecord& record) override {
    const std::lock_guard lock(mutex_);
    records_.push_back(record);
  }
  std::vector<RequestRecord> all() const {
    const std::lock_guard lock(mutex_);
    return records_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<RequestRecord> records_;
};

struct ServedOptions {
  bool chat = true;
  ApiLimits limits = {.max_texts = 8};
  int64_t max_running = 16, max_queued = 64;
  int64_t context = 512;
  std::vector<TokenId> stop_ids = {kEos};  // beside the vocabulary's ends of turns
  std::string chat_template = kDelimitedTemplate;
  std::function<std::string()> metrics = [] { return std::string("none\n"); };
  StateStore* store = nullptr;
};

// The text of one stream: its events, without the last, which is [DONE].
struct Stream {
  std::vector<json::object> events;
  bool done = false;
  std::string joined(std::string_view field, size_t choice = 0) const {  // of the choice's deltas
    std::string out;
    for (const json::object& event : events) {
      for (const json::value& value : event.at("choices").as_array()) {
        if (value.at("index") != choice) continue;
        const json::object* delta =
            value.as_object().contains("delta") ? &value.at("delta").as_object() : &value.as_object();
        if (const json::value* text = delta->if_contains(field)) out += text->as_string();
      }
    }
    return out;
  }
};

class Served {
 public:
  using Options = ServedOptions;
  explicit Served(const Options& options = {})
      : Served(open_golden_model("gemma4-e2b-tiny"), Tokenizer::from_json(delimited_tokenizer_json(), kBos),
               options) {}
  Served(Checkpoint checkpoint, Tokenizer tokenizer, const Options& options)
      : checkpoint_(std::move(checkpoint)), tokenizer_(std::move(tokenizer)), chat_(options.chat_template) {
    EngineOptions engine;
    engine.threads = 1;
    engine.chunk = 32;
    engine.max_sequences = 48;
    engine.context = options.context;
    engine.keep_behind = 32;
    engine_ = std::make_unique<Engine>(checkpoint_.spec, *checkpoint_.tensors, engine);
    SchedulerOptions scheduler;
    scheduler.max_queued = options.max_queued;
    scheduler.max_running = options.max_running;
    scheduler.step_rows = 32;
    scheduler.vocab_size = std::min(checkpoint_.spec.vocab_size, tokenizer_.vocab_size());
    scheduler.cache.max_entries = 16;
    scheduler.store = options.store;
    scheduler_ = std::make_unique<Scheduler>(*engine_, std::move(scheduler));
    Service service;
    ServedModel& model = service.model;
    model.name = "tiny";
    model.spec = &checkpoint_.spec;
    model.tokenizer = &tokenizer_;
    if (options.chat) model.chat = &chat_;
    model.bos = "<bos>";
    model.eos = "<eos>";
    model.stop_ids = tokenizer_.turn_end_ids();
    model.stop_ids.insert(model.stop_ids.end(), options.stop_ids.begin(), options.stop_ids.end());
    std::sort(model.stop_ids.begin(), model.stop_ids.end());
    model.stop_ids.erase(std::unique(model.stop_ids.begin(), model.stop_ids.end()), model.stop_ids.end());
    model.syntax = TurnSyntax::of(tokenizer_, model.stop_ids);
    model.grammars.emplace(tokenizer_, model.stop_ids);
    model.context = options.context;
    model.words = std::min(checkpoint_.spec.vocab_size, tokenizer_.vocab_size());
    model.numeric_mode = engine_->numeric_mode();
    service.limits = options.limits;
    service.scheduler = scheduler_.get();
    service.observers = {&records_};
    service.ready = [this] { return ready_.load(); };
    service.version = "test";
    service.metrics = options.metrics;
    model_ = service.model;
    api_ = std::make_unique<Api>(std::move(service));
  }
  ~Served() { scheduler_->stop(); }

  std::shared_ptr<FakeExchange> send(const std::string& method, const std::string& path,
                                     const std::string& body,
                                     std::shared_ptr<FakeExchange> exchange = nullptr) {
    if (!exchange) exchange = std::make_shared<FakeExchange>();
    HttpRequest request;
    request.id = "req" + std::to_string(next_++);
    request.method = method;
    request.path = path;
    request.body = body;
    request.client = "test";
    request.headers = {{"content-type", "application/json"}};
    api_->handle(std::move(request), exchange);
    return exchange;
  }
  HttpAnswer answer(const std::string& path, const std::string& body) {
    const auto exchange = send("POST", path, body);
    EXPECT_TRUE(exchange->wait()) << path << " " << body;
    EXPECT_EQ(exchange->answers(), 1) << body;
    return exchange->got();
  }
  json::object ask(const std::string& path, const json::object& body) {
    const HttpAnswer got = answer(path, json::serialize(body));
    EXPECT_EQ(got.status, 200) << got.body << "\n" << json::serialize(body);
    return json::parse(got.body).as_object();
  }
  // status, param and a part of the message of a refusal.
  void refused(const std::string& path, const std::string& body, int status, const std::string& param,
               const std::string& part) {
    const HttpAnswer got = answer(path, body);
    EXPECT_EQ(got.status, status) << got.body << "\n" << body;
    const json::value parsed = json::parse(got.body);
    const json::object& error = parsed.at("error").as_object();
    for (const char* key : {"message", "type", "code"}) EXPECT_TRUE(error.at(key).is_string()) << got.body;
    if (param.empty()) {
      EXPECT_TRUE(error.at("param").is_null()) << got.body << "\n" << body;
    } else {
      EXPECT_EQ(error.at("param"), json::value(param)) << got.body << "\n" << body;
    }
    EXPECT_NE(std::string(error.at("message").as_string()).find(part), std::string::npos) << got.body;
  }
  Stream stream(const std::string& path, json::object body) {
    body["stream"] = true;
    const auto exchange = send("POST", path, json::serialize(body));
    EXPECT_TRUE(exchange->wait());
    EXPECT_TRUE(exchange->streaming()) << exchange->got().body;
    return read_stream(*exchange);
  }
  static Stream read_stream(const FakeExchange& exchange) {
    Stream out;
    std::string all;
    for (const std::string& piece : exchange.pieces()) all += piece;
    while (!all.empty()) {
      const size_t end = all.find("\n\n");
      EXPECT_EQ(all.compare(0, 6, "data: "), 0) << all;
      if (end == std::string::npos) {
        ADD_FAILURE() << "an event without an end: " << all;
        return out;
      }
      const std::string data = all.substr(6, end - 6);
      all.erase(0, end + 2);
      if (data == "[DONE]") {
        out.done = true;
      } else {
        out.events.push_back(json::parse(data).as_object());
      }
    }
    return out;
  }

  // Records come a moment after the answers.
  std::vector<RequestRecord> wait_records(size_t n) const {
    for (int i = 0; i < 6000 && records_.all().size() < n; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return records_.all();
  }

  Scheduler& scheduler() { return *scheduler_; }
  Api& api() { return *api_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const ServedModel& model() const { return model_; }
  const Records& records() const { return records_; }
  void set_ready(bool ready) { ready_ = ready; }

 private:
  Checkpoint checkpoint_;
  Tokenizer tokenizer_;
  ChatTemplate chat_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  Records records_;
  std::atomic<bool> ready_ = true;
  std::atomic<int> next_ = 0;
  ServedModel model_;
  std::unique_ptr<Api> api_;
};

inline const char* const kChatPath = "/v1/chat/completions";
inline const char* const kTextPath = "/v1/completions";

}  // namespace lapidary::serve::test
