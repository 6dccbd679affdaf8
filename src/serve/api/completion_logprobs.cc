#include "serve/api/completion_logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "serve/api/answer_json.h"
#include "text/utf8.h"

namespace lapidary::serve {
namespace json = boost::json;

std::string CompletionLogprobs::spelling(TokenId id) const {
  std::string bytes = tokenizer_->token_bytes(id);
  if (utf8_valid_prefix(bytes) == bytes.size()) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

void CompletionLogprobs::add_first(TokenId id) {
  tokens_.push_back(json::string(spelling(id)));
  logprobs_.push_back(nullptr);
  best_.push_back(nullptr);
  offsets_.push_back(0);
}

// The token itself is in the list of the best only if it is one of them, or when the list would lack it.
void CompletionLogprobs::add(const ScoredToken& token, size_t offset) {
  const auto put = [this](json::object& best, const TokenScore& score) {
    best.emplace(spelling(score.id), written_logprob(score.logprob));  // of equal spellings, the better
  };
  json::object best;
  for (size_t i = 0; i < std::min(token.best.size(), static_cast<size_t>(top_)); ++i)
    put(best, token.best[i]);
  if (top_ > 0) put(best, token.token);
  tokens_.push_back(json::string(spelling(token.token.id)));
  logprobs_.push_back(written_logprob(token.token.logprob));
  best_.push_back(std::move(best));
  offsets_.push_back(offset);
}

json::object CompletionLogprobs::take() {
  json::object out;
  out["tokens"] = std::exchange(tokens_, {});
  out["token_logprobs"] = std::exchange(logprobs_, {});
  if (top_ > 0) {
    out["top_logprobs"] = std::exchange(best_, {});
  } else {
    best_.clear();
    out["top_logprobs"] = nullptr;
  }
  out["text_offset"] = std::exchange(offsets_, {});
  return out;
}

}  // namespace lapidary::serve
