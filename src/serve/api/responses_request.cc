#include "serve/api/responses_request.h"

#include <boost/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/quote.h"
#include "serve/api/responses_input.h"

namespace lapidary::serve {
namespace {

namespace json = boost::json;

constexpr std::string_view kLogprobs = "message.output_text.logprobs";
// Fields that mean the same to a chat, and are read there.
constexpr std::string_view kShared[] = {"model",
                                        "temperature",
                                        "top_p",
                                        "top_k",
                                        "min_p",
                                        "repetition_penalty",
                                        "frequency_penalty",
                                        "presence_penalty",
                                        "logit_bias",
                                        "seed",
                                        "stop",
                                        "parallel_tool_calls",
                                        "chat_template_kwargs"};
// A chat's name of a field, and what it is called here.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"response_format.json_schema", "text.format"},
    {"response_format", "text.format"},
    {"max_completion_tokens", "max_output_tokens"},
    {"reasoning_effort", "reasoning.effort"},
    {"logprobs", "include"},
    {"tool_choice.function", "tool_choice"},
};

json::array read_tools(const json::array& tools) {
  json::array out;
  for (size_t i = 0; i < tools.size(); ++i) {
    Fields tool = Fields::of(tools[i], item_path("tools", i));
    const std::string type = tool.needed_text("type");
    if (type != "function") {
      refuse("unsupported_value", tool.path("type"), "{}: expected function, got {}", tool.path("type"),
             quoted(type));
    }
    json::object function{{"name", tool.needed_text("name")}};
    for (const char* name : {"description", "parameters", "strict"}) {
      if (const json::value* value = tool.raw(name)) function[name] = *value;
    }
    tool.done();
    out.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

json::value read_tool_choice(const json::value& value) {
  if (value.is_string()) return value;
  Fields choice = Fields::of(value, "tool_choice");
  const std::string type = choice.needed_text("type");
  if (type != "function") {
    refuse("unsupported_value", choice.path("type"), "{}: expected function, got {}", choice.path("type"),
           quoted(type));
  }
  const std::string name = choice.needed_text("name");
  choice.done();
  return json::object{{"type", "function"}, {"function", {{"name", name}}}};
}

json::object read_format(Fields format) {
  const std::string type = format.needed_text("type");
  if (type == "text" || type == "json_object") {
    format.done();
    return {{"type", type}};
  }
  if (type != "json_schema") {
    refuse("invalid_value", format.path("type"), "{}: expected one of text, json_object, json_schema, got {}",
           format.path("type"), quoted(type));
  }
  json::object schema{{"name", format.needed_text("name")}, {"schema", format.needed("schema")}};
  for (const char* name : {"description", "strict"}) {
    if (const json::value* value = format.raw(name)) schema[name] = *value;
  }
  format.done();
  return {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

void read_text(Fields& fields, ResponsesRequest& out) {
  json::object echo{{"format", {{"type", "text"}}}};
  if (std::optional<Fields> text = fields.object("text")) {
    text->text("verbosity");  // without effect, as at the top of a chat
    if (std::optional<Fields> format = text->object("format")) {
      echo["format"] = format->json();
      out.chat["response_format"] = read_format(*format);
    }
    text->done();
  }
  out.echo["text"] = std::move(echo);
}

void read_reasoning(Fields& fields, ResponsesRequest& out) {
  json::object echo{{"effort", nullptr}, {"summary", nullptr}};
  if (std::optional<Fields> reasoning = fields.object("reasoning")) {
    if (const std::optional<std::string> effort = reasoning->text("effort")) {
      out.chat["reasoning_effort"] = *effort;
      echo["effort"] = *effort;
    }
    constexpr std::string_view kSummaries[] = {"auto"};  // as much as there is: none
    reasoning->choice("summary", kSummaries);
    reasoning->done();
  }
  out.echo["reasoning"] = std::move(echo);
}

void read_logprobs(Fields& fields, const Service& service, ResponsesRequest& out) {
  const std::optional<int64_t> top = fields.integer("top_logprobs", 0, service.limits.max_logprobs);
  bool wanted = top.value_or(0) > 0;
  if (const json::array* include = fields.array("include", 16)) {
    for (size_t i = 0; i < include->size(); ++i) {
      const std::string place = item_path("include", i), what = text_of((*include)[i], place);
      // The second is for servers that keep their reasoning to themselves; here it is in the clear anyway.
      if (what != kLogprobs && what != "reasoning.encrypted_content") {
        refuse("unsupported_value", place, "{}: expected {}, got {}", place, kLogprobs, quoted(what));
      }
      wanted = wanted || what == kLogprobs;
    }
  }
  if (wanted) {
    out.chat["logprobs"] = true;
    if (top) out.chat["top_logprobs"] = *top;
  }
  out.echo["top_logprobs"] = top.value_or(0);
}

void read_metadata(Fields& fields, ResponsesRequest& out) {
  json::object metadata;
  if (std::optional<Fields> given = fields.object("metadata")) {
    for (const auto& field : given->json()) {
      metadata[field.key()] = text_of(field.value(), given->path(std::string_view(field.key())));
    }
  }
  out.echo["metadata"] = std::move(metadata);
}

// What this server keeps nothing for.
void refuse_stored(Fields& fields) {
  constexpr std::string_view kNothingStored = "this server stores no responses: send the whole input";
  if (fields.flag("store").value_or(false)) refuse("unsupported_value", "store", "store: {}", kNothingStored);
  fields.refuse_if_present("previous_response_id", kNothingStored);
  fields.refuse_if_present("conversation", kNothingStored);
  fields.refuse_if_present("prompt", "this server stores no prompts");
  if (fields.flag("background").value_or(false)) {
    refuse("unsupported_value", "background", "background: {}", kNothingStored);
  }
  fields.refuse_if_present("max_tool_calls", "this server calls no tools itself");
  constexpr std::string_view kTruncations[] = {"disabled"};
  fields.choice("truncation", kTruncations);
}

// As the response has them when the request left them out.
void echo_defaults(ResponsesRequest& out, const Service& service) {
  const auto echo = [&](const char* name, json::value otherwise) {
    const json::value* given = out.chat.if_contains(name);
    out.echo[name] = given != nullptr ? *given : std::move(otherwise);
  };
  echo("temperature", service.model.sampling.temperature);
  echo("top_p", service.model.sampling.top_p);
  echo("parallel_tool_calls", true);
}

}  // namespace

ResponsesRequest read_responses_request(const json::object& body, const Service& service) {
  ResponsesRequest out;
  Fields fields(body, "");
  refuse_stored(fields);
  for (const std::string_view name : kShared) {
    if (const json::value* value = fields.raw(name)) out.chat[name] = *value;
  }
  InputMessages input;
  const std::optional<std::string> instructions = fields.text("instructions");
  if (instructions) input.add_instructions(*instructions);
  out.echo["instructions"] = instructions ? json::value(*instructions) : json::value(nullptr);
  input.add_input(fields.needed("input"), service.limits.max_messages);
  out.chat["messages"] = std::move(input.messages);
  out.places = std::move(input.places);

  out.echo["tools"] = json::array();
  out.echo["tool_choice"] = "auto";
  const json::array* tools = fields.array("tools", static_cast<size_t>(service.limits.max_tools));
  if (tools != nullptr && !tools->empty()) {
    out.chat["tools"] = read_tools(*tools);
    out.echo["tools"] = *tools;
  }
  if (const json::value* choice = fields.raw("tool_choice")) {
    out.chat["tool_choice"] = read_tool_choice(*choice);
    out.echo["tool_choice"] = *choice;
  }
  out.echo["max_output_tokens"] = nullptr;
  if (const json::value* most = fields.raw("max_output_tokens")) {
    out.chat["max_completion_tokens"] = *most;
    out.echo["max_output_tokens"] = *most;
  }
  read_text(fields, out);
  read_reasoning(fields, out);
  read_logprobs(fields, service, out);
  read_metadata(fields, out);
  out.stream = fields.flag("stream").value_or(false);
  if (std::optional<Fields> options = fields.object("stream_options")) {
    options->flag("include_obfuscation");
    options->done();
  }
  fields.allow_harmless();
  fields.done();
  echo_defaults(out, service);
  return out;
}

ApiError in_words_of(const ResponsesRequest& request, const ApiError& error) {
  std::string param = error.param();
  if (param.starts_with("messages[")) {
    const size_t close = param.find(']');
    const size_t index = std::stoul(param.substr(9, close - 9));
    std::string rest = param.substr(close + 1);
    if (rest == ".tool_call_id") rest = ".call_id";
    if (index < request.places.size()) param = request.places[index] + rest;
  } else if (param == "messages") {
    param = "input";
  } else if (const size_t function = param.find("].function");
             param.starts_with("tools[") && function != std::string::npos) {
    param.erase(function + 1, std::string_view(".function").size());
  } else {
    for (const auto& [theirs, ours] : kNames) {
      if (!param.starts_with(theirs)) continue;
      param = std::string(ours) + param.substr(theirs.size());
      break;
    }
  }
  std::string message = error.what();
  if (!error.param().empty() && message.starts_with(error.param() + ":")) {
    message = param + message.substr(error.param().size());
  }
  return {error.status(), error.type(), error.code(), param, message};
}

}  // namespace lapidary::serve
