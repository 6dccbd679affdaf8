// Text and ids: /tokenize, /detokenize, /apply-template. Fields are vLLM's, with llama-server's `content` as
// another name of the text.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <limits>
#include <utility>

#include "serve/api/chat_messages.h"
#include "serve/api/chat_plan.h"
#include "serve/api/endpoints.h"
#include "serve/api/fields.h"
#include "serve/api/sampling_fields.h"
#include "text/utf8.h"

namespace lapidary::serve {
namespace {

namespace json = boost::json;

json::object piece_json(const Tokenizer& tokenizer, TokenId id) {
  const std::string bytes = tokenizer.token_bytes(id);
  const bool text = utf8_valid_prefix(bytes) == bytes.size();
  json::array numbers;
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  return {{"id", id},
          {"piece", text ? json::value(bytes) : json::value(nullptr)},
          {"bytes", std::move(numbers)},
          {"special", tokenizer.is_special(id)}};
}

json::object tokens_json(const ServedModel& model, const std::vector<TokenId>& ids, bool with_pieces) {
  json::object out{{"count", ids.size()},
                   {"max_model_len", model.context},
                   {"tokens", json::array(ids.begin(), ids.end())}};
  if (with_pieces) {
    json::array pieces;
    for (const TokenId id : ids) pieces.push_back(piece_json(*model.tokenizer, id));
    out["pieces"] = std::move(pieces);
  }
  return out;
}

// The prompt of a chat, from the fields that chat completions have for it.
RenderedChat read_chat(Fields& fields, const Call& call) {
  const Service& service = *call.service;
  fields.needed("messages");
  const json::array& messages = *fields.array("messages", static_cast<size_t>(service.limits.max_messages));
  const ChatMessages read = read_messages(messages, "messages", *call.facts);
  const ChatTools tools = read_tools(fields, service.limits);
  const ChatOptions options = read_chat_options(fields, *call.facts);
  fields.done();
  return render_chat(service, *call.facts, read, tools, options);
}

std::vector<TokenId> read_text(Fields& fields, const Tokenizer& tokenizer) {
  const std::optional<std::string> prompt = fields.text("prompt"), content = fields.text("content");
  const bool special = fields.flag("add_special_tokens").value_or(true);
  const bool parse = fields.flag("parse_special").value_or(true);
  fields.done();
  if (prompt.has_value() == content.has_value()) {
    refuse("missing_field", "prompt", "prompt: expected one of prompt, content and messages");
  }
  const std::string& text = prompt ? *prompt : *content;
  return special ? tokenizer.prompt_ids(text, parse) : tokenizer.encode(text, parse);
}

void tokenize(Call& call) {
  const Service& service = *call.service;
  const json::object body = parse_body(call.request, service.limits.max_json_depth);
  Fields fields(body, "");
  check_model(fields, service.model);
  const bool with_pieces = fields.flag("with_pieces").value_or(false);
  const bool chat = fields.raw("messages") != nullptr;
  const std::vector<TokenId> ids =
      chat ? read_chat(fields, call).ids : read_text(fields, *service.model.tokenizer);
  call.reply->json(tokens_json(service.model, ids, with_pieces));
}

void apply_template(Call& call) {
  const json::object body = parse_body(call.request, call.service->limits.max_json_depth);
  Fields fields(body, "");
  check_model(fields, call.service->model);
  const RenderedChat chat = read_chat(fields, call);
  call.reply->json(json::object{{"prompt", chat.text},
                                {"tokens", json::array(chat.ids.begin(), chat.ids.end())},
                                {"count", chat.ids.size()}});
}

void detokenize(Call& call) {
  const Service& service = *call.service;
  const json::object body = parse_body(call.request, service.limits.max_json_depth);
  Fields fields(body, "");
  check_model(fields, service.model);
  fields.needed("tokens");
  const Tokenizer& tokenizer = *service.model.tokenizer;
  const std::vector<TokenId> ids =
      ids_of(*fields.array("tokens", std::numeric_limits<size_t>::max()), "tokens", service.model.words);
  const bool skip = fields.flag("skip_special_tokens").value_or(false);
  fields.done();
  const std::string text = tokenizer.decode(ids, !skip);
  call.reply->json(json::object{{"prompt", text}, {"content", text}});
}

}  // namespace

std::vector<Endpoint> tokens_endpoints() {
  return {{"POST", "/tokenize", tokenize},
          {"POST", "/detokenize", detokenize},
          {"POST", "/apply-template", apply_template}};
}

}  // namespace lapidary::serve
