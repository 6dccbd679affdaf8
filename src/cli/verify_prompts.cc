#include "cli/verify_prompts.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "cli/conversation.h"
#include "formats/mapped_file.h"

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

int64_t largest_window(const ModelSpec& spec) {
  int64_t largest = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.attention) largest = std::max(largest, layer.attention->window);
  }
  return largest;
}

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

std::vector<int32_t> chat_prompt(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                 const json::array& messages) {
  Conversation conversation(checkpoint, tokenizer, {});
  for (const json::value& message : messages) {
    conversation.add(json::value_to<std::string>(message.at("role")),
                     json::value_to<std::string>(message.at("content")));
  }
  return conversation.prompt_ids();
}

VerifyPrompt prompt_of(const json::object& line, const std::string& where, const Checkpoint& checkpoint,
                       const std::optional<Tokenizer>& tokenizer) {
  for (const auto& field : line) {
    const std::string_view key = field.key();
    ensure(key == "name" || key == "text" || key == "ids" || key == "messages", ErrorCode::data,
           "{}: unknown field \"{}\"; known are name, text, ids, messages", where, key);
  }
  VerifyPrompt prompt{line.contains("name") ? json::value_to<std::string>(line.at("name")) : where, {}};
  if (line.contains("ids")) {
    prompt.tokens = json::value_to<std::vector<int32_t>>(line.at("ids"));
    return prompt;
  }
  ensure(tokenizer.has_value(), ErrorCode::usage, "{}: the model has no tokenizer: give \"ids\"", where);
  if (line.contains("text")) {
    prompt.tokens = tokenizer->prompt_ids(json::value_to<std::string>(line.at("text")));
  } else {
    ensure(line.contains("messages"), ErrorCode::data, "{}: expected \"text\", \"ids\" or \"messages\"",
           where);
    prompt.tokens = chat_prompt(checkpoint, *tokenizer, line.at("messages").as_array());
  }
  return prompt;
}

}  // namespace

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
    try {
      prompts.push_back(prompt_of(json::parse(line).as_object(), where, checkpoint, tokenizer));
    } catch (const boost::system::system_error& error) {
      fail(ErrorCode::data, "{}: expected one JSON object, got something else ({})", where,
           error.code().message());
    }
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
      const json::array messages{
          {{"role", "user"}, {"content", "What is a gemstone? Answer in one sentence."}}};
      prompts.push_back({"chat", chat_prompt(checkpoint, *tokenizer, messages)});
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
