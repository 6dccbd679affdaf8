#include "cli/conversation.h"

#include <boost/json.hpp>

#include "base/error.h"
#include "formats/mapped_file.h"

namespace lapidary {
namespace {

std::string template_source(const Checkpoint& checkpoint, const ChatFlags& flags) {
  if (!flags.template_file.empty()) return read_text_file(flags.template_file);
  ensure(checkpoint.text.chat_template.has_value(), ErrorCode::usage,
         "{} has no chat template; complete text with --raw, or give a template with --chat-template FILE",
         checkpoint.path.string());
  return *checkpoint.text.chat_template;
}

std::string spelling(const Tokenizer& tokenizer, std::optional<int64_t> id) {
  return id ? tokenizer.token_name(static_cast<TokenId>(*id)) : std::string();
}

}  // namespace

Conversation::Conversation(const Checkpoint& checkpoint, const Tokenizer& tokenizer, const ChatFlags& flags)
    : tokenizer_(tokenizer), template_(template_source(checkpoint, flags)), flags_(flags) {
  const TextAssets& text = checkpoint.text;
  options_["add_generation_prompt"] = true;
  options_["bos_token"] =
      spelling(tokenizer, text.bos_id ? text.bos_id : std::optional<int64_t>(tokenizer.bos_id()));
  options_["eos_token"] = spelling(tokenizer, text.eos_id);
  if (flags.think) {
    ensure(template_.source().find("enable_thinking") != std::string::npos, ErrorCode::usage,
           "--think: the chat template of {} has no enable_thinking switch", checkpoint.path.string());
    options_["enable_thinking"] = *flags.think;
  }
  reset();
}

void Conversation::add(const std::string& role, const std::string& content) {
  messages_.push_back(boost::json::object{{"role", role}, {"content", content}});
}

void Conversation::drop_last() {
  messages_.pop_back();
}

void Conversation::reset() {
  messages_.clear();
  if (!flags_.system.empty()) add("system", flags_.system);
}

bool Conversation::drop_turn() {
  size_t last = messages_.size();
  while (last > 0 && messages_[last - 1].at("role").as_string() != "user") last--;
  if (last == 0) return false;
  messages_.resize(last - 1);
  return true;
}

std::optional<std::string> Conversation::take_answer() {
  if (messages_.empty() || messages_.back().at("role").as_string() != "assistant") return {};
  std::string answer(messages_.back().at("content").as_string());
  messages_.pop_back();
  return answer;
}

ChatRequest Conversation::request() const {
  ChatRequest request;
  request.messages_json = boost::json::serialize(messages_);
  request.options_json = boost::json::serialize(options_);
  return request;
}

std::string Conversation::prompt_text() const {
  return template_.render(request());
}

std::vector<TokenId> Conversation::prompt_ids() const {
  return chat_ids(template_, tokenizer_, request());
}

}  // namespace lapidary
