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

std::string name_of_tool(const boost::json::value& entry, const std::string& place) {
  const boost::json::object* tool = entry.if_object();
  ensure(tool != nullptr, ErrorCode::data, "{}: expected an object, got {}", place,
         boost::json::serialize(entry));
  if (const boost::json::value* function = tool->if_contains("function")) {
    tool = function->if_object();
    ensure(tool != nullptr, ErrorCode::data, "{}.function: expected an object", place);
  }
  const boost::json::value* name = tool->if_contains("name");
  ensure(name != nullptr && name->is_string() && !name->get_string().empty(), ErrorCode::data,
         "{}: expected a function with a name", place);
  return std::string(name->get_string());
}

}  // namespace

Tools read_tools(const std::string& path) {
  if (path.empty()) return {};
  Tools tools{read_text_file(path), {}};
  boost::system::error_code problem;
  const boost::json::value document = boost::json::parse(tools.json, problem);
  ensure(!problem, ErrorCode::data, "{} is not JSON: {}", path, problem.message());
  ensure(document.is_array() && !document.get_array().empty(), ErrorCode::data,
         "{}: expected an array of one tool or more", path);
  for (const boost::json::value& entry : document.get_array()) {
    tools.names.push_back(name_of_tool(entry, fmt::format("{}, tool {}", path, tools.names.size())));
  }
  return tools;
}

Conversation::Conversation(const Checkpoint& checkpoint, const Tokenizer& tokenizer, const ChatFlags& flags)
    : tokenizer_(tokenizer),
      template_(template_source(checkpoint, flags)),
      flags_(flags),
      tools_(read_tools(flags.tools_file)) {
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
  ensure(tools_.json.empty() || template_.source().find("tools") != std::string::npos, ErrorCode::usage,
         "--tools: the chat template of {} declares no tools", checkpoint.path.string());
  reset();
}

void Conversation::add(const std::string& role, const std::string& content) {
  messages_.push_back(
      {role, boost::json::serialize(boost::json::object{{"role", role}, {"content", content}})});
}

void Conversation::add_answer(const std::string& content, const std::string& reasoning,
                              const std::vector<ToolCall>& calls) {
  const auto text = [](const std::string& value) {
    return boost::json::serialize(boost::json::string(value));
  };
  std::string message = R"({"role":"assistant","content":)" + text(content);
  if (!reasoning.empty()) message += R"(,"reasoning_content":)" + text(reasoning);
  if (!calls.empty()) {
    message += R"(,"tool_calls":[)";
    for (size_t i = 0; i < calls.size(); ++i) {
      if (i > 0) message += ',';
      message +=
          fmt::format(R"({{"id":"call_{}","type":"function","function":{{"name":{},"arguments":{}}}}})", i,
                      text(calls[i].name), calls[i].arguments);
    }
    message += ']';
  }
  messages_.push_back({"assistant", message + '}'});
}

void Conversation::drop_last() {
  messages_.pop_back();
}

void Conversation::reset() {
  messages_.clear();
  if (!flags_.system.empty()) add("system", flags_.system);
}

void Conversation::restart(const std::string& system) {
  flags_.system = system;
  reset();
}

bool Conversation::drop_turn() {
  size_t last = messages_.size();
  while (last > 0 && messages_[last - 1].role != "user") last--;
  if (last == 0) return false;
  messages_.resize(last - 1);
  return true;
}

std::optional<Message> Conversation::take_answer() {
  if (messages_.empty() || messages_.back().role != "assistant") return {};
  Message answer = std::move(messages_.back());
  messages_.pop_back();
  return answer;
}

ChatRequest Conversation::request() const {
  ChatRequest request;
  request.messages_json = "[";
  for (const Message& message : messages_) {
    request.messages_json += (request.messages_json == "[" ? "" : ",") + message.json;
  }
  request.messages_json += "]";
  request.tools_json = tools_.json;
  request.options_json = boost::json::serialize(options_);
  return request;
}

std::vector<TokenId> Conversation::prompt_ids() const {
  return chat_ids(template_, tokenizer_, request());
}

}  // namespace lapidary
