#include "serve/api/answer_json.h"

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <random>

#include "base/hash.h"
#include "text/utf8.h"

namespace lapidary::serve {
namespace json = boost::json;

std::string unique_id(std::string_view head) {
  static const uint64_t process = (uint64_t{std::random_device{}()} << 32) ^ std::random_device{}();
  static std::atomic<uint64_t> count = 0;
  Hasher hasher;
  hasher.add(process).add(count.fetch_add(1, std::memory_order_relaxed));
  return std::string(head) + hash_text(hasher.digest()).substr(0, 24);
}

double written_logprob(float logprob) {
  constexpr double kImpossible = -9999;
  return std::max(static_cast<double>(logprob), kImpossible);
}

json::object token_json(const Tokenizer& tokenizer, const TokenScore& score) {
  const std::string bytes = tokenizer.token_bytes(score.id);
  json::array numbers;
  numbers.reserve(bytes.size());
  for (const char c : bytes) numbers.push_back(static_cast<unsigned char>(c));
  return {{"token", utf8_lossy(bytes)},
          {"logprob", written_logprob(score.logprob)},
          {"bytes", std::move(numbers)}};
}

json::object token_json(const Tokenizer& tokenizer, const ScoredToken& token, int64_t top) {
  json::object out = token_json(tokenizer, token.token);
  json::array best;
  for (size_t i = 0; i < std::min(token.best.size(), static_cast<size_t>(top)); ++i) {
    best.push_back(token_json(tokenizer, token.best[i]));
  }
  out["top_logprobs"] = std::move(best);
  return out;
}

json::object call_json(const ToolCall& call) {
  return {{"id", unique_id("call_")},
          {"type", "function"},
          {"function", json::object{{"name", call.name}, {"arguments", call.arguments}}}};
}

json::object Usage::json() const {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", json::object{{"cached_tokens", cached_tokens}}},
          {"completion_tokens_details", json::object{{"reasoning_tokens", reasoning_tokens}}}};
}

std::string_view finish_reason(const JobEnd& end, bool calls) {
  if (end.reason == EndReason::max_tokens || end.reason == EndReason::context) return "length";
  return calls ? "tool_calls" : "stop";
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace lapidary::serve
