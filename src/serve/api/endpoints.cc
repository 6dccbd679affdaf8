#include "serve/api/endpoints.h"

#include <boost/json.hpp>
#include <iterator>

#include "serve/api/sse.h"

namespace lapidary::serve {

Reply::Reply(std::shared_ptr<const Service> service, std::shared_ptr<Exchange> exchange, RequestRecord record)
    : service_(std::move(service)),
      exchange_(std::move(exchange)),
      record_(std::move(record)),
      begin_(Clock::now()) {}

// The exchange answers 500 for whoever never answered; a peer that is gone has no status.
Reply::~Reply() {
  finish(exchange_->gone() ? kPeerGone : 500);
  tell(true);
}

void Reply::finish(int status) {
  {
    const std::lock_guard lock(mutex_);
    if (answered_) return;
    answered_ = true;
    record_.status = status;
    record_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  tell(false);
}

void Reply::tell(bool last) {
  RequestRecord record;
  {
    const std::lock_guard lock(mutex_);
    if (finished_ || !answered_ || (!last && record_.texts.size() < texts_expected_)) return;
    finished_ = true;
    record = record_;
  }
  for (Observer* observer : service_->observers) observer->on_request(record);
}

bool Reply::claim(bool stream) {
  const std::lock_guard lock(mutex_);
  if (claimed_) return false;
  claimed_ = true;
  streaming_ = record_.stream = stream;
  return true;
}

void Reply::answer(HttpAnswer answer) {
  if (!claim(false)) return;
  const int status = answer.status;
  exchange_->answer(std::move(answer));
  finish(exchange_->gone() ? kPeerGone : status);
}

void Reply::json(const boost::json::value& body) {
  answer({200, "application/json", boost::json::serialize(body), {}});
}

void Reply::error(const ApiError& error, const std::string& event) {
  {
    const std::lock_guard lock(mutex_);
    record_.error_code = error.code();
    record_.error_param = error.param();
  }
  if (streaming()) {
    write(event.empty() ? sse_event(error.body()) : event);
    return end_stream();
  }
  HttpAnswer answer{error.status(), "application/json", error.body(), {}};
  if (error.status() == 429 || error.status() == 503) answer.headers.emplace_back("Retry-After", "1");
  this->answer(std::move(answer));
}

void Reply::note_internal(std::string what) {
  const std::lock_guard lock(mutex_);
  record_.internal_error = std::move(what);
}

void Reply::internal_error(std::string what) {
  note_internal(std::move(what));
  error(internal_api_error());
}

ApiError internal_api_error() {
  return {500, "server_error", "internal_error", "", "the server failed on this request"};
}

void Reply::begin_stream() {
  if (claim(true)) exchange_->begin_stream("text/event-stream");
}

void Reply::write(std::string piece) {
  {
    const std::lock_guard lock(mutex_);
    if (!streaming_ || answered_) return;
  }
  exchange_->write(std::move(piece));
}

void Reply::end_stream() {
  {
    const std::lock_guard lock(mutex_);
    if (!streaming_ || answered_) return;
  }
  exchange_->end_stream();
  finish(exchange_->gone() ? kPeerGone : 200);
}

bool Reply::streaming() const {
  const std::lock_guard lock(mutex_);
  return streaming_;
}

void Reply::token_now() {
  const std::lock_guard lock(mutex_);
  if (record_.first_token_seconds >= 0) return;
  record_.first_token_seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
}

void Reply::gap(double seconds) {
  const std::lock_guard lock(mutex_);
  record_.token_gaps.push_back(seconds);
}

void Reply::expect_texts(size_t n) {
  const std::lock_guard lock(mutex_);
  texts_expected_ = n;
}

void Reply::add_text(const JobEnd& end) {
  {
    const std::lock_guard lock(mutex_);
    record_.texts.push_back(end);
  }
  tell(false);
}

void Reply::add_guarded(int64_t loops_ended, int64_t reserved_wanted) {
  const std::lock_guard lock(mutex_);
  record_.loops_ended += loops_ended;
  record_.reserved_wanted += reserved_wanted;
}

ApiError client_error(const Error& error, std::string_view code, std::string_view param) {
  return {400, "invalid_request_error", std::string(code), std::string(param), error.what()};
}

std::vector<Endpoint> all_endpoints() {
  std::vector<Endpoint> all;
  for (auto* list : {
           chat_endpoints,
           completions_endpoints,
           responses_endpoints,
           embeddings_endpoints,
           tokens_endpoints,
           models_endpoints,
           kv_endpoints,
           openapi_endpoints,
           page_endpoints,
       }) {
    std::vector<Endpoint> some = list();
    std::move(some.begin(), some.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace lapidary::serve
