// What is served, whether it serves, and what it counts: /v1/models, /health, /ready, /version, /metrics,
// /tokenizer_info.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <utility>

#include "base/quote.h"
#include "serve/api/endpoints.h"

namespace lapidary::serve {
namespace {

namespace json = boost::json;

constexpr std::string_view kModelsPath = "/v1/models/";

json::object defaults_json(const Service& service) {
  const SamplingParams& sampling = service.model.sampling;
  const ApiLimits& limits = service.limits;
  const bool bound = limits.max_tokens > 0 && limits.max_tokens < limits.default_max_tokens;
  return {{"max_tokens", bound ? limits.max_tokens : limits.default_max_tokens},
          {"temperature", sampling.temperature},
          {"top_p", sampling.top_p},
          {"top_k", sampling.top_k},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty}};
}

json::object model_json(const Service& service) {
  const ServedModel& model = service.model;
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "lapidary"},
          {"max_model_len", model.context},
          {"numeric_mode", model.numeric_mode},
          {"vocab_size", model.words},
          {"embedding_size", model.spec->d_model},
          {"chat", model.chat != nullptr},
          {"tools", model.chat != nullptr && model.syntax.call_open.has_value()},
          {"reasoning", model.chat != nullptr && model.syntax.thought_open.has_value()},
          {"defaults", defaults_json(service)}};
}

void list_models(Call& call) {
  json::array data;
  data.push_back(model_json(*call.service));
  call.reply->json(json::object{{"object", "list"}, {"data", std::move(data)}});
}

void read_model(Call& call) {
  const ServedModel& model = call.service->model;
  const std::string name = call.request.path.substr(kModelsPath.size());
  if (name != model.name) {
    throw ApiError(404, "not_found_error", "model_not_found", "model",
                   fmt::format("there is no model {}; this server has {}", quoted(name), quoted(model.name)));
  }
  call.reply->json(model_json(*call.service));
}

void health(Call& call) {
  call.reply->json(json::object{{"status", "ok"}});
}

void ready(Call& call) {
  const Service& service = *call.service;
  if (service.scheduler->failed()) {
    throw ApiError(503, "server_error", "engine_failed", "",
                   "the engine failed: the server must be restarted");
  }
  if (!service.ready()) {
    throw ApiError(503, "server_error", "not_ready", "", "the server is loading or going down");
  }
  call.reply->json(json::object{{"status", "ok"}});
}

void version(Call& call) {
  call.reply->json(json::object{{"version", call.service->version}});
}

void metrics(Call& call) {
  HttpAnswer answer;
  answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
  answer.body = call.service->metrics();
  call.reply->answer(std::move(answer));
}

json::value text_or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(text);
}

// What clients that bring no tokenizer of their own ask for.
void tokenizer_info(Call& call) {
  const ServedModel& model = call.service->model;
  call.reply->json(json::object{
      {"bos_token", text_or_null(model.bos)},
      {"eos_token", text_or_null(model.eos)},
      {"add_bos_token", model.tokenizer->adds_bos()},
      {"chat_template", model.chat != nullptr ? json::value(model.chat->source()) : json::value(nullptr)},
      {"vocab_size", model.tokenizer->vocab_size()},
      {"model_max_length", model.context}});
}

}  // namespace

std::vector<Endpoint> models_endpoints() {
  return {{"GET", "/v1/models", list_models},
          {"GET", "/v1/models/{model}", read_model},
          {"GET", "/health", health},
          {"GET", "/ready", ready},
          {"GET", "/version", version},
          {"GET", "/metrics", metrics},
          {"GET", "/tokenizer_info", tokenizer_info}};
}

}  // namespace lapidary::serve
