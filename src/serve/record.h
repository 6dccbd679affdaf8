// What is known of a request when it is over: one line of the log, one observation of the metrics. No prompt,
// no answer, no secret.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/job.h"

namespace lapidary::serve {

struct RequestRecord {
  std::string id, client, method, endpoint;  // endpoint: the route ("/v1/chat/completions"), never a raw path
  int status = 0;
  std::string error_code, error_param;  // of a refusal
  std::string internal_error;           // what went wrong here; never sent to the client
  bool stream = false;
  double seconds = 0;               // from the whole request to the last byte handed over
  double first_token_seconds = -1;  // -1: no token
  std::vector<double> token_gaps;   // seconds between tokens, of all texts
  int64_t loops_ended = 0;          // texts that the loop guard ended
  int64_t reserved_wanted = 0;      // tokens at which the model's best was a reserved one (the guard on)
  std::vector<JobEnd> texts;        // of a request that generates, scores or embeds
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_request(const RequestRecord& record) = 0;  // from any thread
};

}  // namespace lapidary::serve
