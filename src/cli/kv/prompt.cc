#include "cli/kv/prompt.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/error.h"
#include "cli/conversation.h"
#include "cli/input.h"
#include "cli/text_assets.h"
#include "text/utf8.h"

namespace lapidary {

KvModel open_kv_model(const std::string& model, const EngineFlags& flags) {
  KvModel opened{open_model(model, flags), {}};
  const TextAssets& text = opened.checkpoint.text;
  if (has_tokenizer(text) && (text.gguf == nullptr || has_gguf_vocabulary(*text.gguf)))
    opened.tokenizer = make_tokenizer(text);
  return opened;
}

std::string piece_text(const KvModel& model, int32_t id) {
  if (!model.tokenizer || id < 0 || id >= model.tokenizer->vocab_size()) return {};
  return utf8_lossy(model.tokenizer->token_bytes(id));
}

std::string text_of(const KvModel& model, const std::vector<int32_t>& ids) {
  if (!model.tokenizer) return {};
  std::vector<TokenId> known;
  for (const int32_t id : ids)
    if (id >= 0 && id < model.tokenizer->vocab_size()) known.push_back(id);
  return model.tokenizer->decode(known, true);
}

std::vector<int32_t> stop_ids_of(const KvModel& model) {
  std::vector<int32_t> ids;
  for (const int64_t id : model.checkpoint.text.stop_ids) ids.push_back(static_cast<int32_t>(id));
  if (model.tokenizer)
    for (const TokenId id : model.tokenizer->turn_end_ids()) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

int64_t words_of(const KvModel& model) {
  const int64_t logits = model.checkpoint.spec.vocab_size;
  return model.tokenizer ? std::min(model.tokenizer->vocab_size(), logits) : logits;
}

std::vector<int32_t> tokens_of_text(const KvModel& model, const std::string& text, bool chat) {
  ensure(model.tokenizer.has_value(), ErrorCode::not_found, "{}: this model has no tokenizer; give token ids",
         model.checkpoint.path.string());
  if (!chat) return model.tokenizer->prompt_ids(text);
  Conversation conversation(model.checkpoint, *model.tokenizer, {});
  conversation.add("user", text);
  return conversation.prompt_ids();
}

void add_kv_prompt_flags(CLI::App& command, KvPromptFlags& flags) {
  command.add_option("PROMPT", flags.prompt, "Text, fed as it stands; - reads standard input");
  command.add_option("--ids", flags.ids, "Token ids 1,2,3 or a .json file with them, in place of text");
  command.add_flag("--chat", flags.chat, "Put PROMPT into the model's chat template, as its user's message");
}

std::vector<int32_t> prompt_tokens(const KvModel& model, const KvPromptFlags& flags) {
  ensure(!flags.prompt || !flags.ids, ErrorCode::usage, "PROMPT and --ids cannot be given together");
  ensure(flags.prompt || flags.ids, ErrorCode::usage, "a PROMPT or --ids is required");
  ensure(!flags.chat || !flags.ids, ErrorCode::usage,
         "--chat needs a PROMPT; token ids are fed as they stand");
  std::vector<int32_t> ids;
  if (flags.ids) {
    ids = ids_argument(*flags.ids);
  } else {
    std::string text = *flags.prompt;
    if (text == "-") {
      text = read_stdin();
      if (text.ends_with('\n')) text.pop_back();
      if (text.ends_with('\r')) text.pop_back();
    }
    ensure(!text.empty(), ErrorCode::usage, "the prompt is empty");
    ids = tokens_of_text(model, text, flags.chat);
  }
  ensure(!ids.empty(), ErrorCode::usage, "the prompt is empty");
  for (size_t i = 0; i < ids.size(); ++i)
    ensure(ids[i] >= 0 && ids[i] < model.checkpoint.spec.vocab_size, ErrorCode::usage,
           "token {} is {}, outside the vocabulary of {}", i, ids[i], model.checkpoint.spec.vocab_size);
  return ids;
}

}  // namespace lapidary
