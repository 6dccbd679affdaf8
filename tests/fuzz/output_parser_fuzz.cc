// Any bytes as what a model wrote: the first byte says what was declared, the second how the ids are divided.
// Of the rest, control characters are special tokens, the others tokens of one byte. Every division gives the
// same parts, and these are UTF-8 and JSON.
#include <boost/json.hpp>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "small_vocabulary.h"
#include "text/output_parser.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

void demand(bool condition) {
  if (!condition) std::abort();
}

TokenId id_of(uint8_t byte) {
  const bool special = byte < 16 && byte != '\n' && byte != '\t' && byte != '\r';
  return special ? TokenId{byte} : kFirstByteToken + byte;
}

struct Parsed {
  OutputDelta all;
  FinishReason finish = FinishReason::stop;
  bool operator==(const Parsed& other) const {
    return all.content == other.all.content && all.reasoning == other.all.reasoning &&
           all.calls == other.all.calls && finish == other.finish;
  }
};

Parsed parse(const Tokenizer& tokenizer, std::span<const TokenId> ids, const OutputOptions& options,
             size_t most) {
  const TokenId stops[] = {kSmallVocabularyStop, 10};
  OutputParser parser(tokenizer, TurnSyntax::of(tokenizer, stops), options);
  Parsed parsed;
  const auto add = [&](const OutputDelta& delta) {
    parsed.all.content += delta.content;
    parsed.all.reasoning += delta.reasoning;
    parsed.all.calls.insert(parsed.all.calls.end(), delta.calls.begin(), delta.calls.end());
    demand(utf8_valid_prefix(delta.content) == delta.content.size());
    demand(utf8_valid_prefix(delta.reasoning) == delta.reasoning.size());
  };
  for (size_t n = 1; !ids.empty(); n = n % most + 1) {
    const size_t now = std::min(n, ids.size());
    add(parser.push(ids.first(now)));
    ids = ids.subspan(now);
  }
  add(parser.finish());
  parsed.finish = parser.finish_reason();
  return parsed;
}

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lapidary;
  static const Tokenizer tokenizer = small_vocabulary();
  if (size < 2) return 0;
  const OutputOptions options{.tools = (data[0] & 1) != 0, .in_thought = (data[0] & 2) != 0};
  std::vector<TokenId> ids;
  for (size_t i = 2; i < size; ++i) ids.push_back(id_of(data[i]));
  const Parsed one_by_one = parse(tokenizer, ids, options, 1);
  demand(one_by_one == parse(tokenizer, ids, options, 1 + data[1] % 9));
  demand(one_by_one == parse(tokenizer, ids, options, ids.size() + 1));
  for (const ToolCall& call : one_by_one.all.calls) {
    demand(options.tools && !call.name.empty());
    boost::json::parse_options deep;
    deep.max_depth = kMaxCallDepth;
    demand(boost::json::parse(call.arguments, {}, deep).is_object());
  }
  return 0;
}
