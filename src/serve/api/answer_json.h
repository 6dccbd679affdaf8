// Pieces of OpenAI's answers.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/texts.h"
#include "serve/job.h"

namespace lapidary::serve {

std::string unique_id(std::string_view head);  // "call_" and 24 digits; no two are the same

// Logarithms of probabilities as clients can read them: -infinity is -9999.
double written_logprob(float logprob);

// {"token", "logprob", "bytes"}; text that is not UTF-8 has U+FFFD in `token` and is exact in `bytes`.
boost::json::object token_json(const Tokenizer& tokenizer, const TokenScore& score);
// The same with "top_logprobs", the best `top` of those that there are.
boost::json::object token_json(const Tokenizer& tokenizer, const ScoredToken& token, int64_t top);
boost::json::object call_json(const ToolCall& call);  // {"id", "type", "function"}

// The usage of a request over all its texts. Prompts count once, however many texts they get.
struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
  boost::json::object json() const;
};

// "stop", "length", "tool_calls".
std::string_view finish_reason(const JobEnd& end, bool calls);

int64_t unix_seconds();

}  // namespace lapidary::serve
