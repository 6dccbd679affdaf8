// Chat templates: Jinja as Hugging Face renders it (minijinja in bridge/). Templates come from model files:
// fuel, depth and output size are limited, and there is no access to anything but the values passed in.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace lapidary {

struct ChatRequest {
  std::string messages_json = "[]";  // [{"role": ..., "content": ...}, ...]; key order is kept
  std::string tools_json;            // empty: none declared (Jinja sees none)
  std::string options_json =
      "{}";  // all passed to the template: add_generation_prompt, enable_thinking, bos_token, eos_token, ...
  std::optional<std::string> now;  // ISO time for strftime_now; absent: the real clock
};

class ChatTemplate {
 public:
  explicit ChatTemplate(std::string source);  // Error(data) with line and reason when it does not parse
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();
  // Error(data) when the template raises or fails, Error(limit) when it runs out of fuel, depth or output
  // size.
  std::string render(const ChatRequest& request) const;
  const std::string& source() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  friend std::vector<TokenId> chat_ids(const ChatTemplate&, const Tokenizer&, const ChatRequest&);
};

// The ids that a rendered request feeds the model, under the BOS rule of Tokenizer. Special tokens stand only
// where the template itself wrote them: a message that spells `<turn|>` or `<|tool_call>` is text, so users
// can forge neither turns nor calls. (What the model said earlier, role assistant, is taken at its word where
// the template looks for special tokens in it.) Errors as render().
std::vector<TokenId> chat_ids(const ChatTemplate& chat, const Tokenizer& tokenizer,
                              const ChatRequest& request);

}  // namespace lapidary
