#include "serve/api/responses_input.h"

#include <utility>

#include "base/quote.h"
#include "serve/api/api_error.h"
#include "serve/api/chat_messages.h"
#include "serve/api/fields.h"

namespace lapidary::serve {
namespace {

namespace json = boost::json;

constexpr std::string_view kItems[] = {"message", "function_call", "function_call_output", "reasoning"};
constexpr std::string_view kRoles[] = {"user", "assistant", "system", "developer"};
constexpr std::string_view kStatuses[] = {"in_progress", "completed", "incomplete"};

constexpr size_t kLongestName = 256;  // of calls and their ids, as in a chat

// Text of one part; `type` is the one kind of part that may stand here.
std::string part_text(const json::value& value, std::string_view type, const std::string& place) {
  Fields part = Fields::of(value, place);
  const std::string got = part.needed_text("type");
  if (got != type) {
    refuse("unsupported_value", part.path("type"), "{}: expected {}, got {}: this server takes text only",
           part.path("type"), type, quoted(got));
  }
  std::string text = part.needed_text("text");
  for (const char* name : {"annotations", "logprobs"}) part.raw(name);  // of output that is sent back
  part.done();
  return text;
}

// A string, or parts of the given type, joined.
std::string content_text(const json::value& value, std::string_view type, const std::string& place) {
  const json::array* parts = value.if_array();
  if (parts == nullptr) return text_of(value, place);
  std::string text;
  for (size_t i = 0; i < parts->size(); ++i) {
    if (i > 0) text += '\n';  // as the parts of a chat's message
    text += part_text((*parts)[i], type, item_path(place, i));
  }
  return text;
}

// Fields that items carry when they are sent back as they came.
void allow_own(Fields& item) {
  item.text("id");
  item.choice("status", kStatuses);
}

}  // namespace

void InputMessages::add(json::object message, std::string place) {
  messages.push_back(std::move(message));
  places.push_back(std::move(place));
}

void InputMessages::add_instructions(const std::string& text) {
  add({{"role", "system"}, {"content", text}}, "instructions");
}

json::object& InputMessages::assistant(const std::string& place) {
  if (turn_.empty()) {
    turn_["role"] = "assistant";
    turn_place_ = place;
  }
  return turn_;
}

void InputMessages::end_turn() {
  if (turn_.empty()) return;
  add(std::move(turn_), std::move(turn_place_));
  turn_ = json::object();
}

void InputMessages::add_input(const json::value& input, int64_t max_items) {
  const json::array* items = input.if_array();
  if (items == nullptr) {
    add({{"role", "user"}, {"content", text_of(input, "input")}}, "input");
    return;
  }
  if (items->empty()) refuse("empty_input", "input", "input: there is no item");
  if (static_cast<int64_t>(items->size()) > max_items) {
    refuse("too_long", "input", "input: expected at most {} items, got {}", max_items, items->size());
  }
  for (size_t i = 0; i < items->size(); ++i) add_item((*items)[i], item_path("input", i));
  end_turn();
}

void InputMessages::add_item(const json::value& value, const std::string& place) {
  Fields item = Fields::of(value, place);
  const std::string type = item.choice("type", kItems).value_or("message");
  if (type == "message") return add_message(value, place);
  if (type == "function_call") return add_call(value, place);
  if (type == "function_call_output") return add_call_output(value, place);
  add_reasoning(value, place);
}

void InputMessages::add_message(const json::value& value, const std::string& place) {
  Fields item = Fields::of(value, place);
  item.text("type");
  allow_own(item);
  item.needed("role");
  const std::string role = *item.choice("role", kRoles);
  const bool own = role == "assistant";
  const std::string content =
      content_text(item.needed("content"), own ? "output_text" : "input_text", item.path("content"));
  item.done();
  if (!own) {
    end_turn();
    add({{"role", role}, {"content", content}}, place);
    return;
  }
  if (turn_.contains("content") || turn_.contains("tool_calls")) end_turn();
  assistant(place)["content"] = content;
}

void InputMessages::add_call(const json::value& value, const std::string& place) {
  Fields item = Fields::of(value, place);
  item.text("type");
  allow_own(item);
  const std::string id = item.needed_text("call_id", kLongestName),
                    name = item.needed_text("name", kLongestName),
                    arguments = object_text(item.needed_text("arguments"), item.path("arguments"));
  item.done();
  json::value& calls = assistant(place)["tool_calls"];
  if (!calls.is_array()) calls = json::array();
  calls.get_array().push_back(json::object{
      {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}});
}

void InputMessages::add_call_output(const json::value& value, const std::string& place) {
  Fields item = Fields::of(value, place);
  item.text("type");
  allow_own(item);
  const std::string id = item.needed_text("call_id", kLongestName);
  const std::string output = content_text(item.needed("output"), "input_text", item.path("output"));
  item.done();
  end_turn();
  add({{"role", "tool"}, {"tool_call_id", id}, {"content", output}}, place);
}

void InputMessages::add_reasoning(const json::value& value, const std::string& place) {
  Fields item = Fields::of(value, place);
  item.text("type");
  allow_own(item);
  item.array("summary", 64);  // this server writes none; the thoughts themselves are in content
  item.refuse_if_present("encrypted_content", "this server's reasoning is in content, in the clear");
  const json::value* content = item.raw("content");
  const std::string text =
      content == nullptr ? std::string() : content_text(*content, "reasoning_text", item.path("content"));
  item.done();
  if (turn_.contains("content") || turn_.contains("tool_calls")) end_turn();
  if (text.empty()) return;
  json::value& thoughts = assistant(place)["reasoning_content"];
  thoughts = thoughts.is_string() ? std::string(thoughts.get_string()) + "\n" + text : text;
}

}  // namespace lapidary::serve
