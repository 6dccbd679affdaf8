#include "serve/api/chat_plan.h"

#include <boost/json.hpp>

#include "base/error.h"
#include "serve/api/endpoints.h"
#include "serve/api/sampling_fields.h"

namespace lapidary::serve {
namespace json = boost::json;
namespace {

void check_can_chat(const Service& service, const ModelFacts& facts, const ChatTools& tools) {
  const ServedModel& model = service.model;
  if (model.chat == nullptr) {
    refuse("no_chat_template", "messages",
           "{} has no chat template, and the server does not guess one; complete text with /v1/completions",
           model.name);
  }
  if (tools.json.empty()) return;
  if (!facts.declares_tools || !model.syntax.call_open) {
    refuse("no_tools", tools.path, "{}: {}", tools.path,
           facts.declares_tools ? "the vocabulary of this model has no calls that the server knows"
                                : "the chat template of this model declares no tools");
  }
}

void check_messages_size(const Service& service, const ModelFacts& facts, const ChatMessages& messages) {
  size_t bytes = messages.prefill ? messages.prefill->size() : 0;
  for (const std::string& message : messages.json) bytes += message.size();
  constexpr size_t kEscaped = 6;  // a byte of text is so many at most in JSON: "\u0001"
  check_text_size(bytes / kEscaped, service, facts, "messages");
}

ChatRequest chat_request(const Service& service, const ChatMessages& messages, const ChatTools& tools,
                         const ChatOptions& options) {
  ChatRequest request;
  request.messages_json = "[";
  for (const std::string& message : messages.json) {
    if (request.messages_json.size() > 1) request.messages_json += ',';
    request.messages_json += message;
  }
  request.messages_json += "]";
  request.tools_json = tools.json;
  json::object all = options.kwargs;
  all["add_generation_prompt"] = true;
  all["bos_token"] = service.model.bos;
  all["eos_token"] = service.model.eos;
  if (options.thinking) all["enable_thinking"] = *options.thinking;
  request.options_json = json::serialize(all);
  return request;
}

template <typename Render>
auto rendered(Render render) {
  try {
    return render();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal || error.code() == ErrorCode::io) throw;
    throw client_error(error, "chat_template_refused", "messages");
  }
}

std::optional<Grammar> compile(const GrammarEnv& env, const ContentFormat& format) {
  try {
    switch (format.kind) {
      case ContentFormat::Kind::text: break;
      case ContentFormat::Kind::schema: return env.json_schema(format.source);
      case ContentFormat::Kind::regex: return env.regex(format.source);
      case ContentFormat::Kind::grammar: return env.lark(format.source);
    }
    return {};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) throw;
    const char* code = format.kind == ContentFormat::Kind::schema ? "invalid_schema" : "invalid_grammar";
    throw client_error(error, code, format.path);
  }
}

Grammar compile_calls(const GrammarEnv& env, const ChatTools& tools) {
  try {
    return env.call_body(tools.tools);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) throw;
    throw client_error(error, "invalid_schema", tools.path);
  }
}

Constraint constraint(const Service& service, const ChatTools& tools, const ContentFormat& format,
                      bool thinking, bool in_thought) {
  const ServedModel& model = service.model;
  if (!model.grammars) {
    refuse("unsupported_field", format.path.empty() ? tools.path : format.path,
           "answers of this model cannot be bound: its vocabulary is not fit for grammars");
  }
  ConstraintOptions options;
  options.thinking = thinking;
  options.in_thought = in_thought;
  options.must_call = tools.choice == ChatTools::Choice::required;
  if (!tools.tools.empty()) options.calls = compile_calls(*model.grammars, tools);
  return {*model.grammars, model.syntax, compile(*model.grammars, format), options};
}

void take_prefill(const Service& service, const ChatMessages& messages, ChatPlan& plan) {
  const std::vector<TokenId> ids = service.model.tokenizer->encode(*messages.prefill, false);
  if (plan.in_thought) {
    refuse("unsupported_field", messages.prefill_path,
           "{}: the chat template opens a thought for the model, so that its answer cannot be begun for it",
           messages.prefill_path);
  }
  for (const TokenId id : ids) {
    plan.prompt.push_back(id);
    if (!plan.constraint) continue;
    try {
      plan.constraint->take(id);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::usage) throw;
      refuse("prefill_refused", messages.prefill_path,
             "{}: what the answer must be does not allow this beginning", messages.prefill_path);
    }
  }
}

}  // namespace

ChatPlan plan_chat(const Service& service, const ModelFacts& facts, const ChatMessages& messages,
                   const ChatTools& tools, const ContentFormat& format, const ChatOptions& options) {
  check_can_chat(service, facts, tools);
  const ServedModel& model = service.model;
  check_messages_size(service, facts, messages);
  const ChatRequest request = chat_request(service, messages, tools, options);
  ChatPlan plan;
  plan.prompt = rendered([&] { return chat_ids(*model.chat, *model.tokenizer, request); });
  plan.in_thought = ends_in_thought(model.syntax, plan.prompt);
  plan.tools = !tools.tools.empty();
  plan.one_call = plan.tools && !tools.parallel;
  const bool prefilled = messages.prefill && !messages.prefill->empty();
  if (format.kind != ContentFormat::Kind::text || tools.bound()) {
    const bool thinking = options.thinking.value_or(false) && !prefilled;
    plan.constraint.emplace(constraint(service, tools, format, thinking, plan.in_thought));
  }
  if (prefilled) take_prefill(service, messages, plan);
  return plan;
}

RenderedChat render_chat(const Service& service, const ModelFacts& facts, const ChatMessages& messages,
                         const ChatTools& tools, const ChatOptions& options) {
  check_can_chat(service, facts, tools);
  check_messages_size(service, facts, messages);
  const ChatRequest request = chat_request(service, messages, tools, options);
  RenderedChat out;
  out.text = rendered([&] { return service.model.chat->render(request); });
  out.ids = rendered([&] { return chat_ids(*service.model.chat, *service.model.tokenizer, request); });
  if (messages.prefill) {
    out.text += *messages.prefill;
    const std::vector<TokenId> more = service.model.tokenizer->encode(*messages.prefill, false);
    out.ids.insert(out.ids.end(), more.begin(), more.end());
  }
  return out;
}

}  // namespace lapidary::serve
