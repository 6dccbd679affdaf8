#include "serve/api/response_items.h"

#include <fmt/format.h>

#include <utility>

namespace lapidary::serve {
namespace {

namespace json = boost::json;

json::object text_part(std::string_view text, json::array logprobs) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", json::array()},
          {"logprobs", std::move(logprobs)}};
}

json::object reasoning_part(std::string_view text) {
  return {{"type", "reasoning_text"}, {"text", text}};
}

json::object message_item(std::string id, std::string_view status, json::array content) {
  return {{"id", std::move(id)},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

json::object reasoning_item(std::string id, std::string_view status, json::array content) {
  return {{"id", std::move(id)},
          {"type", "reasoning"},
          {"status", status},
          {"summary", json::array()},
          {"content", std::move(content)}};
}

}  // namespace

ResponseItems::ResponseItems(std::string key, Emit emit) : key_(std::move(key)), emit_(std::move(emit)) {}

void ResponseItems::emit(std::string_view type, json::object fields) {
  if (emit_) emit_(type, std::move(fields));
}

std::string ResponseItems::id(std::string_view prefix) const {
  return fmt::format("{}_{}_{}", prefix, key_, items_.size());
}

json::object ResponseItems::at() const {
  return {{"item_id", id(open_ == Open::reasoning ? "rs" : "msg")},
          {"output_index", items_.size()},
          {"content_index", 0}};
}

json::object ResponseItems::part_fields(json::object part) const {
  json::object fields = at();
  fields["part"] = std::move(part);
  return fields;
}

void ResponseItems::open_reasoning() {
  if (open_ == Open::reasoning) return;
  close_open(false);
  open_ = Open::reasoning;
  emit("response.output_item.added",
       {{"output_index", items_.size()}, {"item", reasoning_item(id("rs"), "in_progress", json::array())}});
  emit("response.content_part.added", part_fields(reasoning_part("")));
}

void ResponseItems::open_message() {
  if (open_ == Open::message) return;
  close_open(false);
  open_ = Open::message;
  emit("response.output_item.added",
       {{"output_index", items_.size()}, {"item", message_item(id("msg"), "in_progress", json::array())}});
  emit("response.content_part.added", part_fields(text_part("", json::array())));
}

void ResponseItems::add_item(json::object item) {
  emit("response.output_item.done", {{"output_index", items_.size()}, {"item", item}});
  items_.push_back(std::move(item));
}

void ResponseItems::close_open(bool cut) {
  if (open_ == Open::none) return;
  const std::string_view status = cut ? "incomplete" : "completed";
  json::object fields = at();
  fields["text"] = text_;
  json::object part;
  if (open_ == Open::message) {
    fields["logprobs"] = logprobs_;
    part = text_part(text_, std::move(logprobs_));
    emit("response.output_text.done", std::move(fields));
  } else {
    part = reasoning_part(text_);
    emit("response.reasoning_text.done", std::move(fields));
  }
  emit("response.content_part.done", part_fields(part));
  json::array content;
  content.push_back(std::move(part));
  json::object item = open_ == Open::message ? message_item(id("msg"), status, std::move(content))
                                             : reasoning_item(id("rs"), status, std::move(content));
  open_ = Open::none;
  text_.clear();
  logprobs_ = json::array();
  add_item(std::move(item));
}

void ResponseItems::add_reasoning(std::string_view text) {
  if (text.empty()) return;
  open_reasoning();
  text_ += text;
  json::object fields = at();
  fields["delta"] = text;
  emit("response.reasoning_text.delta", std::move(fields));
}

void ResponseItems::add_text(std::string_view text, json::array logprobs) {
  if (text.empty() && logprobs.empty()) return;
  open_message();
  text_ += text;
  logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
  json::object fields = at();
  fields["delta"] = text;
  fields["logprobs"] = std::move(logprobs);
  emit("response.output_text.delta", std::move(fields));
}

void ResponseItems::add_call(std::string_view call_id, std::string_view name, std::string_view arguments) {
  close_open(false);
  const std::string item_id = id("fc");
  const auto item = [&](std::string_view status, std::string_view said) {
    return json::object{{"id", item_id}, {"type", "function_call"}, {"status", status}, {"call_id", call_id},
                        {"name", name},  {"arguments", said}};
  };
  emit("response.output_item.added", {{"output_index", items_.size()}, {"item", item("in_progress", "")}});
  emit("response.function_call_arguments.delta",
       {{"item_id", item_id}, {"output_index", items_.size()}, {"delta", arguments}});
  emit("response.function_call_arguments.done",
       {{"item_id", item_id}, {"output_index", items_.size()}, {"name", name}, {"arguments", arguments}});
  add_item(item("completed", arguments));
}

void ResponseItems::close(bool cut) {
  if (items_.empty() && open_ == Open::none) open_message();
  close_open(cut);
}

}  // namespace lapidary::serve
