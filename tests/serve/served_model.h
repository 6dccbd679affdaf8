// A golden model behind the whole API, without HTTP: requests go in as HTTP hands them over, answers come out
// as HTTP would send them.
#pragma once

#include <boost/json.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "formats/checkpoint.h"
#include "serve/api/api.h"

namespace lapidary::serve::test {

struct ServedAnswer {
  int status = 0;  // 0: none came
  std::string content_type, body;
  std::vector<std::pair<std::string, std::string>> headers;
  bool streamed = false;
  std::vector<std::string> pieces;  // of a stream
  boost::json::value json() const;  // of the body; throws when it is none
  boost::json::object error() const { return json().at("error").as_object(); }
};

// Keeps what is answered.
class KeptExchange : public Exchange {
 public:
  void answer(HttpAnswer answer) override;
  void begin_stream(std::string content_type) override;
  void write(std::string piece) override;
  void end_stream() override;
  bool gone() const override;
  size_t unsent() const override { return 0; }
  void when_gone(std::function<void()> call) override;
  void when_drained(std::function<void()>) override {}

  void leave();         // the peer goes
  ServedAnswer wait();  // for the whole answer

 private:
  mutable std::mutex mutex_;
  std::condition_variable done_;
  ServedAnswer answer_;
  bool complete_ = false, gone_ = false;
  std::function<void()> when_gone_;
};

struct ServedOptions {
  std::string model = "llama-tiny-F32";  // a GGUF golden, or "smollm2-135m-instruct" of the cache
  std::string chat_template;             // empty: the model's own, if it has one
  ApiLimits limits;
  SchedulerOptions scheduler;
  std::vector<Observer*> observers;
  std::function<std::string()> metrics;
};

class Served {
 public:
  explicit Served(ServedOptions options = {});
  ~Served();
  ServedAnswer get(const std::string& path) { return ask("GET", path, ""); }
  ServedAnswer post(const std::string& path, const boost::json::value& body) {
    return ask("POST", path, boost::json::serialize(body));
  }
  ServedAnswer ask(const std::string& method, const std::string& path, std::string body,
                   const std::string& content_type = "application/json");
  std::shared_ptr<KeptExchange> begin(const std::string& method, const std::string& path, std::string body,
                                      const std::string& content_type = "application/json");

  const ServedModel& model() const { return model_; }
  Scheduler& scheduler() { return *scheduler_; }
  bool ready = true;

 private:
  Checkpoint checkpoint_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  ServedModel model_;
  std::unique_ptr<Api> api_;
  int64_t requests_ = 0;
};

}  // namespace lapidary::serve::test
