#include "cli/verify_prompts.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "cli/conversation.h"
#include "formats/mapped_file.h"
#include "spec/json_fields.h"

namespace lapidary {
namespace {

namespace json = boost::json;

struct Text {
  const char *name, *text;
};

constexpr std::array<Text, 4> kTexts = {{
    {"prose",
     "A gemstone is cut so that light entering through the table is turned back by the facets below it. The "
     "angle "
     "decides: too shallow, and the light leaks out at the bottom; too deep, and it leaves by the side."},
    {"code",
     "int64_t count_ones(uint64_t x) {\n  int64_t n = 0;\n  while (x) {\n    x &= x - 1;  // clears the "
     "lowest one\n"
     "    ++n;\n  }\n  return n;\n}\n"},
    {"languages",
     "Die Hauptstadt von Frankreich ist Paris. La capitale de l'Italie est Rome. "
     "\xD0\xA1\xD1\x82\xD0\xBE\xD0\xBB\xD0\xB8\xD1\x86\xD0\xB0 "
     "\xD0\xAF\xD0\xBF\xD0\xBE\xD0\xBD\xD0\xB8\xD0\xB8 - "
     "\xD0\xA2\xD0\xBE\xD0\xBA\xD0\xB8\xD0\xBE. \xE6\x9D\xB1\xE4\xBA\xAC\xE3\x81\xAF\xE9\xA6\x96\xE9\x83\xBD "
     "\xF0\x9F\x97\xBC"},
    {"numbers", "17 + 25 = 42, 3.14159, 2026-11-30, 1e-6, 0x7fff; the 1st, the 22nd and the 333rd of 4,096."},
}};

constexpr int64_t kPastTheWindow = 48;

std::vector<int32_t> random_ids(const Checkpoint& checkpoint, int64_t count, uint64_t stream) {
  std::vector<int32_t> ids;
  if (checkpoint.text.bos_id) ids.push_back(static_cast<int32_t>(*checkpoint.text.bos_id));
  for (uint64_t i = 0; static_cast<int64_t>(ids.size()) < count; ++i) {
    const double u = uniform_double(42, stream, i);
    ids.push_back(static_cast<int32_t>(u * static_cast<double>(checkpoint.spec.vocab_size)));
  }
  return ids;
}

// Prose of at least `count` tokens, each sentence with a number of its own so that no two places look alike.
std::vector<int32_t> long_text(const Tokenizer& tokenizer, int64_t count) {
  std::string text;
  std::vector<int32_t> ids;
  for (int sentence = 1; static_cast<int64_t>(ids.size()) < count; ++sentence) {
    const std::string line = kTexts[static_cast<size_t>(sentence) % kTexts.size()].text;
    text += fmt::format("{}. {}\n", sentence, line);
    ids = tokenizer.prompt_ids(text, false);
  }
  ids.resize(static_cast<size_t>(count));
  return ids;
}

struct ChatMessage {
  std::string role, content;
};

std::vector<int32_t> chat_prompt(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                 const std::vector<ChatMessage>& messages) {
  Conversation conversation(checkpoint, tokenizer, {});
  for (const ChatMessage& message : messages) conversation.add(message.role, message.content);
  return conversation.prompt_ids();
}

std::vector<ChatMessage> read_messages(JsonFields& line) {
  std::vector<ChatMessage> messages;
  for (const json::value& value : line.get_array("messages")) {
    JsonFields message(value, fmt::format("{}[{}]", line.path("messages"), messages.size()));
    messages.push_back({message.get_string("role"), message.get_string("content")});
    message.refuse_unknown();
  }
  return messages;
}

std::vector<int32_t> read_ids(JsonFields& line) {
  std::vector<int32_t> ids;
  for (const json::value& value : line.get_array("ids")) {
    const std::string where = fmt::format("{}[{}]", line.path("ids"), ids.size());
    ensure(value.is_int64() && value.get_int64() >= 0 && value.get_int64() <= INT32_MAX, ErrorCode::data,
           "{}: expected a token id, got {}", where, describe_json(value));
    ids.push_back(static_cast<int32_t>(value.get_int64()));
  }
  return ids;
}

VerifyPrompt read_prompt(const std::string& text, const std::string& where, const Checkpoint& checkpoint,
                         const std::optional<Tokenizer>& tokenizer) {
  const json::value value = parse_json(text, where);
  JsonFields line(value, where);
  VerifyPrompt prompt{line.find_string("name").value_or(where), {}};
  const int kinds = line.has("ids") + line.has("text") + line.has("messages");
  if (kinds == 1) {
    ensure(tokenizer.has_value() || line.has("ids"), ErrorCode::usage,
           "{}: the model has no tokenizer: expected \"ids\"", where);
    if (line.has("ids")) prompt.tokens = read_ids(line);
    else if (line.has("text")) prompt.tokens = tokenizer->prompt_ids(line.get_string("text"));
    else prompt.tokens = chat_prompt(checkpoint, *tokenizer, read_messages(line));
  }
  if (kinds <= 1) line.refuse_unknown();
  ensure(kinds == 1, ErrorCode::data, "{}: expected one of \"text\", \"ids\" and \"messages\", got {}", where,
         kinds);
  return prompt;
}

}  // namespace

int64_t largest_window(const ModelSpec& spec) {
  int64_t largest = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.attention) largest = std::max(largest, layer.attention->window);
  }
  return largest;
}

std::vector<VerifyPrompt> read_prompts(const std::string& path, const Checkpoint& checkpoint,
                                       const std::optional<Tokenizer>& tokenizer) {
  const std::string text = read_text_file(path);
  const bool lines_are_json = path.ends_with(".jsonl");
  ensure(lines_are_json || tokenizer, ErrorCode::usage,
         "{}: the model has no tokenizer: give a .jsonl file with \"ids\"", path);
  std::vector<VerifyPrompt> prompts;
  size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    if (!lines_are_json) {
      prompts.push_back({fmt::format("line {}", number), tokenizer->prompt_ids(line)});
      continue;
    }
    prompts.push_back(read_prompt(line, where, checkpoint, tokenizer));
  }
  ensure(!prompts.empty(), ErrorCode::usage, "{} holds no prompt", path);
  return prompts;
}

std::vector<VerifyPrompt> built_in_prompts(const Checkpoint& checkpoint,
                                           const std::optional<Tokenizer>& tokenizer) {
  std::vector<VerifyPrompt> prompts;
  if (tokenizer) {
    for (const Text& text : kTexts) prompts.push_back({text.name, tokenizer->prompt_ids(text.text, false)});
    if (checkpoint.text.chat_template) {
      const std::string question = "What is a gemstone? Answer in one sentence.";
      prompts.push_back({"chat", chat_prompt(checkpoint, *tokenizer, {{"user", question}})});
    }
  } else {
    for (uint64_t i = 1; i <= 2; ++i)
      prompts.push_back({fmt::format("random {}", i), random_ids(checkpoint, 24, i)});
  }
  const int64_t window = largest_window(checkpoint.spec);
  const int64_t length = std::min(window + kPastTheWindow, checkpoint.spec.max_position - 64);
  if (window > 0 && length > window && length <= kLongestPrompt) {
    prompts.push_back(
        {"past the window", tokenizer ? long_text(*tokenizer, length) : random_ids(checkpoint, length, 3)});
  }
  return prompts;
}

}  // namespace lapidary
