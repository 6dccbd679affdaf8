// A chat: messages, and the prompt that the model's template makes of them.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace lapidary {

struct ChatFlags {
  std::string system;         // empty: none
  std::optional<bool> think;  // absent: what the template does by itself
  std::string template_file;  // empty: the model's own
};

class Conversation {
 public:
  // REQUIRES: tokenizer outlives it. Error(usage): no template anywhere, or --think where the template knows
  // no such switch.
  Conversation(const Checkpoint& checkpoint, const Tokenizer& tokenizer, const ChatFlags& flags);
  void add(const std::string& role, const std::string& content);
  void drop_last();  // an answer that failed must not leave its question behind
  void reset();      // back to the system message
  bool drop_turn();  // the last question and what follows it; false when there is none
  // Takes the last answer back and returns it; nothing when the last message is none.
  std::optional<std::string> take_answer();
  const boost::json::array& messages() const { return messages_; }
  void set_messages(boost::json::array messages) { messages_ = std::move(messages); }
  // The conversation so far and the opening of the model's turn, with exactly one BOS where the model wants
  // one.
  std::vector<TokenId> prompt_ids() const;
  std::string prompt_text() const;

 private:
  ChatRequest request() const;

  const Tokenizer& tokenizer_;
  ChatTemplate template_;
  ChatFlags flags_;
  boost::json::object options_;
  boost::json::array messages_;
};

}  // namespace lapidary
