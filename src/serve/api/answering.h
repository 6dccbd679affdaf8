// One request's texts on their way through the scheduler: submits its jobs, hears what comes, holds them when
// the reader is slow, ends them when the reader is gone or one of them fails.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serve/api/endpoints.h"
#include "serve/job.h"

namespace lapidary::serve {

class Answering : public std::enable_shared_from_this<Answering> {
 public:
  explicit Answering(Call& call);
  virtual ~Answering();
  Answering(const Answering&) = delete;

  // REQUIRES: held by a shared_ptr. Fills in request, index, client and deadline of the jobs. ApiError when
  // the scheduler does not take them: 429 for a full queue, 503 when it goes down, 400 for what could never
  // fit. On a worker's thread; the rest is called on the scheduler's.
  void start(std::vector<Job> jobs);

 protected:
  using Next = JobSink::Next;
  // May throw: the request then fails with a 500.
  virtual void on_start(size_t text, int64_t cached_tokens) { (void)text, (void)cached_tokens; }
  virtual void on_prompt_scores(size_t text, std::vector<ScoredToken> scores) { (void)text, (void)scores; }
  virtual void on_embedding(size_t text, std::vector<float> embedding) { (void)text, (void)embedding; }
  virtual Next on_token(size_t text, TokenId id, const ScoredToken* score) = 0;
  // For reasons that leave an answer: stop_token, max_tokens, context, complete, sink.
  virtual void on_end(size_t text, const JobEnd& end) = 0;
  virtual void on_all_ended() = 0;  // every text got its on_end
  // The request has failed, and nothing of the above follows. `internal`: what the log should know. Default:
  // the reply is told.
  virtual void on_failure(const ApiError& error, const std::string& internal);

  const Service& service() const { return *service_; }
  const ServedModel& model() const { return service_->model; }
  Reply& reply() { return *reply_; }
  const std::string& request_id() const { return request_id_; }

 private:
  class Sink;
  struct Progress {
    Clock::time_point last;
    bool any = false;
  };
  template <typename Work>
  bool guarded(Work work);  // false: it threw, now or earlier
  Next token(size_t text, TokenId id, const ScoredToken* score);
  void end(size_t text, const JobEnd& end);
  void fail_with(const JobEnd& end);
  void fail_once(const ApiError& error, const std::string& internal);
  void cancel_all();
  void resume_all();

  std::shared_ptr<const Service> service_;
  std::shared_ptr<Reply> reply_;
  std::string request_id_, client_;
  std::vector<Progress> progress_;  // of the scheduler's thread, as the next two
  size_t left_ = 0;
  bool failed_ = false;
  std::mutex mutex_;
  std::vector<Ticket> tickets_;  // guarded, as the next two
  bool cancel_ = false, resume_ = false;
};

}  // namespace lapidary::serve
