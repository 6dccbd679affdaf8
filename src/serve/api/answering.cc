#include "serve/api/answering.h"

#include <utility>

namespace lapidary::serve {

// The scheduler keeps the sinks, the sinks keep the request.
class Answering::Sink : public JobSink {
 public:
  Sink(std::shared_ptr<Answering> owner, size_t text) : owner_(std::move(owner)), text_(text) {}
  void on_start(int64_t cached_tokens) override {
    owner_->guarded([&] { owner_->on_start(text_, cached_tokens); });
  }
  void on_prompt_scores(std::vector<ScoredToken> scores) override {
    owner_->guarded([&] { owner_->on_prompt_scores(text_, std::move(scores)); });
  }
  void on_embedding(std::vector<float> embedding) override {
    owner_->guarded([&] { owner_->on_embedding(text_, std::move(embedding)); });
  }
  Next on_token(TokenId id, const ScoredToken* score) override { return owner_->token(text_, id, score); }
  void on_end(const JobEnd& end) override {
    owner_->end(text_, end);
    owner_.reset();
  }

 private:
  std::shared_ptr<Answering> owner_;
  size_t text_;
};

Answering::Answering(Call& call)
    : service_(call.service),
      reply_(call.reply),
      request_id_(call.request.id),
      client_(call.request.client) {}

Answering::~Answering() = default;

void Answering::start(std::vector<Job> jobs) {
  const size_t n = jobs.size();
  progress_.resize(n);
  left_ = n;
  std::vector<Scheduler::Order> orders;
  for (size_t i = 0; i < n; ++i) {
    Job& job = jobs[i];
    job.request = request_id_;
    job.index = static_cast<int64_t>(i);
    job.client = client_;
    if (service_->limits.request_seconds > 0) {
      job.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(service_->limits.request_seconds));
    }
    orders.push_back({std::move(job), std::make_shared<Sink>(shared_from_this(), i)});
  }
  std::vector<Ticket> tickets;
  reply_->expect_texts(n);
  try {
    tickets = service_->scheduler->submit(std::move(orders));
  } catch (const Error& error) {
    reply_->expect_texts(0);
    if (error.code() != ErrorCode::limit && error.code() != ErrorCode::usage) throw;
    if (error.code() == ErrorCode::limit && service_->ready && !service_->ready()) {
      throw ApiError(503, "server_error", "shutting_down", "", "the server takes no new requests");
    }
    if (error.code() == ErrorCode::limit && !service_->scheduler->has_room_for(n)) {
      throw ApiError(429, "rate_limit_error", "queue_full", "",
                     "too many requests wait already; try again in a moment");
    }
    const bool limit = error.code() == ErrorCode::limit;
    throw client_error(error, limit ? "context_length_exceeded" : "invalid_request", "");
  }
  bool cancel = false, resume = false;
  {
    const std::lock_guard lock(mutex_);
    tickets_ = std::move(tickets);
    cancel = cancel_;
    resume = resume_;
  }
  if (cancel) cancel_all();
  if (resume) resume_all();
  const std::weak_ptr<Answering> weak = weak_from_this();
  Exchange& exchange = reply_->exchange();
  exchange.when_drained([weak] {
    if (const auto self = weak.lock()) self->resume_all();
  });
  exchange.when_gone([weak] {
    if (const auto self = weak.lock()) self->cancel_all();
  });
}

template <typename Work>
bool Answering::guarded(Work work) {
  if (failed_) return false;
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    fail_once(internal_api_error(), error.what());
    return false;
  }
}

JobSink::Next Answering::token(size_t text, TokenId id, const ScoredToken* score) {
  Progress& progress = progress_[text];
  const Clock::time_point now = Clock::now();
  progress.any ? reply_->gap(std::chrono::duration<double>(now - progress.last).count())
               : reply_->token_now();
  progress = {now, true};
  Next next = Next::stop;
  if (!guarded([&] { next = on_token(text, id, score); })) return Next::stop;
  const bool slow = reply_->exchange().unsent() > Exchange::kSlowReader;
  return next == Next::go_on && slow ? Next::pause : next;
}

void Answering::end(size_t text, const JobEnd& end) {
  reply_->add_text(end);
  left_--;
  switch (end.reason) {
    case EndReason::cancelled:
    case EndReason::deadline:
    case EndReason::error:
    case EndReason::shutdown: fail_with(end); break;
    case EndReason::stop_token:
    case EndReason::max_tokens:
    case EndReason::context:
    case EndReason::complete:
    case EndReason::sink: guarded([&] { on_end(text, end); }); break;
  }
  if (left_ == 0) guarded([&] { on_all_ended(); });
}

void Answering::on_failure(const ApiError& error, const std::string& internal) {
  if (!internal.empty()) reply_->note_internal(internal);
  reply_->error(error);
}

void Answering::fail_once(const ApiError& error, const std::string& internal) {
  if (std::exchange(failed_, true)) return;
  on_failure(error, internal);
  cancel_all();
}

void Answering::fail_with(const JobEnd& end) {
  switch (end.reason) {
    case EndReason::deadline:
      return fail_once(
          ApiError(504, "server_error", "deadline_exceeded", "",
                   fmt::format("the request took longer than {} seconds", service_->limits.request_seconds)),
          "");
    case EndReason::shutdown:
      return fail_once(ApiError(503, "server_error", "shutting_down", "", "the server is going down"), "");
    case EndReason::cancelled:  // the peer is gone: nobody hears it
      return fail_once(ApiError(499, "server_error", "cancelled", "", "the request was cancelled"), "");
    default: break;
  }
  if (!end.grammar_failed) return fail_once(internal_api_error(), end.error);
  fail_once(ApiError(400, "invalid_request_error", "invalid_grammar", "",
                     "what the answer must be cannot be enforced: " + end.error),
            "");
}

void Answering::cancel_all() {
  std::vector<Ticket> tickets;
  {
    const std::lock_guard lock(mutex_);
    cancel_ = true;
    tickets = tickets_;
  }
  for (const Ticket ticket : tickets) service_->scheduler->cancel(ticket);
}

void Answering::resume_all() {
  std::vector<Ticket> tickets;
  {
    const std::lock_guard lock(mutex_);
    resume_ = tickets_.empty();
    tickets = tickets_;
  }
  for (const Ticket ticket : tickets) service_->scheduler->resume(ticket);
}

}  // namespace lapidary::serve
