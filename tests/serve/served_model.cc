#include "serve/served_model.h"

#include <algorithm>
#include <chrono>

#include "base/hash.h"
#include "cli/text_assets.h"
#include "engine/real_models.h"
#include "support/golden_models.h"

namespace lapidary::serve::test {
namespace {

using lapidary::test::cached_model;
using lapidary::test::is_gguf_model;
using lapidary::test::open_golden_gguf;

Checkpoint open_any(const std::string& name) {
  return is_gguf_model(name) ? open_golden_gguf(name) : open_checkpoint(cached_model(name));
}

std::string spelling(const Tokenizer& tokenizer, std::optional<int64_t> id) {
  return id ? tokenizer.token_name(static_cast<TokenId>(*id)) : std::string();
}

}  // namespace

boost::json::value ServedAnswer::json() const {
  return boost::json::parse(body);
}

void KeptExchange::answer(HttpAnswer answer) {
  const std::lock_guard lock(mutex_);
  answer_.status = answer.status;
  answer_.content_type = std::move(answer.content_type);
  answer_.body = std::move(answer.body);
  answer_.headers = std::move(answer.headers);
  complete_ = true;
  done_.notify_all();
}

void KeptExchange::begin_stream(std::string content_type) {
  const std::lock_guard lock(mutex_);
  answer_.status = 200;
  answer_.content_type = std::move(content_type);
  answer_.streamed = true;
}

void KeptExchange::write(std::string piece) {
  const std::lock_guard lock(mutex_);
  answer_.body += piece;
  answer_.pieces.push_back(std::move(piece));
}

void KeptExchange::end_stream() {
  const std::lock_guard lock(mutex_);
  complete_ = true;
  done_.notify_all();
}

bool KeptExchange::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

void KeptExchange::when_gone(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone_) {
      when_gone_ = std::move(call);
      return;
    }
  }
  call();
}

void KeptExchange::leave() {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    call = std::exchange(when_gone_, nullptr);
  }
  if (call) call();
}

ServedAnswer KeptExchange::wait() {
  std::unique_lock lock(mutex_);
  done_.wait_for(lock, std::chrono::seconds(60), [this] { return complete_; });
  return answer_;
}

Served::Served(ServedOptions options) : checkpoint_(open_any(options.model)) {
  tokenizer_.emplace(make_tokenizer(checkpoint_.text));
  std::string source = options.chat_template;
  if (source.empty() && checkpoint_.text.chat_template) source = *checkpoint_.text.chat_template;
  if (!source.empty()) chat_.emplace(std::move(source));

  SchedulerOptions scheduler = options.scheduler;
  model_.name = options.model;
  model_.created = 1'700'000'000;
  model_.spec = &checkpoint_.spec;
  model_.tokenizer = &*tokenizer_;
  model_.chat = chat_ ? &*chat_ : nullptr;
  model_.bos = spelling(*tokenizer_, checkpoint_.text.bos_id);
  model_.eos = spelling(*tokenizer_, checkpoint_.text.eos_id);
  for (const int64_t id : checkpoint_.text.stop_ids) model_.stop_ids.push_back(static_cast<TokenId>(id));
  for (const TokenId id : tokenizer_->turn_end_ids()) {
    if (std::find(model_.stop_ids.begin(), model_.stop_ids.end(), id) == model_.stop_ids.end()) {
      model_.stop_ids.push_back(id);
    }
  }
  model_.syntax = TurnSyntax::of(*tokenizer_, model_.stop_ids);
  model_.grammars.emplace(*tokenizer_, model_.stop_ids);
  model_.words = std::min(tokenizer_->vocab_size(), checkpoint_.spec.vocab_size);

  EngineOptions engine;
  engine.threads = 1;
  engine.chunk = scheduler.step_rows;
  engine.max_sequences = scheduler.max_running + scheduler.cache.max_entries + 1;
  engine.context = std::min<int64_t>(checkpoint_.spec.max_position, 1024);
  engine.kv_dtype = KvTypes(KvType::f32);
  engine.keep_behind = 32;
  engine_ = std::make_unique<Engine>(checkpoint_.spec, *checkpoint_.tensors, engine);
  model_.context = engine_->context();
  model_.numeric_mode = engine_->numeric_mode();
  scheduler.vocab_size = model_.words;
  scheduler_ = std::make_unique<Scheduler>(*engine_, std::move(scheduler));

  Service service;
  service.model = model_;
  service.limits = options.limits;
  service.scheduler = scheduler_.get();
  service.observers = std::move(options.observers);
  service.metrics = options.metrics ? std::move(options.metrics) : [] { return std::string("none\n"); };
  service.ready = [this] { return ready; };
  service.version = "0.test";
  api_ = std::make_unique<Api>(std::move(service));
}

Served::~Served() {
  scheduler_->stop();
}

std::shared_ptr<KeptExchange> Served::begin(const std::string& method, const std::string& path,
                                            std::string body, const std::string& content_type) {
  HttpRequest request;
  request.id = "req-" + std::to_string(++requests_);
  request.method = method;
  request.path = path;
  request.body = std::move(body);
  request.client = "127.0.0.1";
  if (!content_type.empty()) request.headers = {{"content-type", content_type}};
  auto exchange = std::make_shared<KeptExchange>();
  api_->handle(std::move(request), exchange);
  return exchange;
}

ServedAnswer Served::ask(const std::string& method, const std::string& path, std::string body,
                         const std::string& content_type) {
  return begin(method, path, std::move(body), content_type)->wait();
}

}  // namespace lapidary::serve::test
