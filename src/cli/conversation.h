// A chat: messages, and the prompt that the model's template makes of them.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "text/chat.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace lapidary {

struct ChatFlags {
  std::string system;         // empty: none
  std::optional<bool> think;  // absent: what the template does by itself
  std::string template_file;  // empty: the model's own
  std::string tools_file;     // JSON array of declared tools; empty: none
};

// Declared tools: a JSON array of {"type": "function", "function": {"name": ...}} or of the functions.
struct Tools {
  std::string json;                // as the template gets it, in its own spelling; empty: none
  std::vector<std::string> names;  // of one tool or more, when there are any
};
// Error(data) naming the entry and what is wrong with it.
Tools read_tools(const std::string& path);

struct Message {
  std::string role;
  std::string json;  // the whole message; as text, because numbers in calls keep their digits
};

class Conversation {
 public:
  // REQUIRES: tokenizer outlives it. Error(usage): no template anywhere, or --think where the template knows
  // no such switch.
  Conversation(const Checkpoint& checkpoint, const Tokenizer& tokenizer, const ChatFlags& flags);
  void add(const std::string& role, const std::string& content);
  // What the model said: content, and what the template may need of its thoughts and calls.
  void add_answer(const std::string& content, const std::string& reasoning,
                  const std::vector<ToolCall>& calls);
  void drop_last();                         // an answer that failed must not leave its question behind
  void reset();                             // back to the system message
  void restart(const std::string& system);  // with this system message from now on; empty: none
  bool drop_turn();                         // the last question and what follows it; false when there is none
  // Takes the last answer back and returns it; nothing when the last message is none.
  std::optional<Message> take_answer();
  void put_back(Message message) { messages_.push_back(std::move(message)); }
  const std::vector<Message>& messages() const { return messages_; }
  void set_messages(std::vector<Message> messages) { messages_ = std::move(messages); }
  // The conversation so far and the opening of the model's turn, with exactly one BOS where the model wants
  // one. Special tokens stand only where the template wrote them: what a message spells is text.
  std::vector<TokenId> prompt_ids() const;
  const Tools& tools() const { return tools_; }

 private:
  ChatRequest request() const;

  const Tokenizer& tokenizer_;
  ChatTemplate template_;
  ChatFlags flags_;
  boost::json::object options_;
  Tools tools_;
  std::vector<Message> messages_;
};

}  // namespace lapidary
