#include "serve/api/sampling_fields.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <random>

#include "base/quote.h"
#include "serve/api/api_error.h"

namespace lapidary::serve {
namespace {

uint64_t random_seed() {  // 32 bits: whole in every client's numbers
  return std::random_device{}();
}

// {"42": -1.5}; OpenAI's -100 and 100 forbid and force in effect, and so they do here: they are added.
std::vector<std::pair<int32_t, float>> read_bias(Fields& fields, const Service& service) {
  std::vector<std::pair<int32_t, float>> out;
  std::optional<Fields> bias = fields.object("logit_bias");
  if (!bias) return out;
  if (bias->json().size() > static_cast<size_t>(service.limits.max_logit_bias)) {
    refuse("too_long", "logit_bias", "logit_bias: expected at most {} tokens, got {}",
           service.limits.max_logit_bias, bias->json().size());
  }
  for (const auto& item : bias->json()) {
    const std::string_view key(item.key().data(), item.key().size());
    int32_t id = -1;
    const auto end = std::from_chars(key.data(), key.data() + key.size(), id);
    if (end.ec != std::errc{} || end.ptr != key.data() + key.size() || id < 0 || id >= service.model.words) {
      refuse("out_of_range", "logit_bias", "logit_bias: expected token ids of 0 to {} as keys, got {}",
             service.model.words - 1, quoted(key));
    }
    const std::optional<double> value = bias->number(key, -100, 100);
    if (!value) continue;
    const bool twice = std::any_of(out.begin(), out.end(), [&](const auto& old) { return old.first == id; });
    if (twice) refuse("invalid_value", "logit_bias", "logit_bias: token {} stands there twice", id);
    out.emplace_back(id, static_cast<float>(*value));
  }
  return out;
}

}  // namespace

void check_model(Fields& fields, const ServedModel& model) {
  const std::optional<std::string> name = fields.text("model");
  if (!name || *name == model.name) return;
  throw ApiError(404, "not_found_error", "model_not_found", "model",
                 fmt::format("model: there is no {} here; this server runs {}", quoted(*name), model.name));
}

SamplingParams read_sampling(Fields& fields, const Service& service) {
  SamplingParams params = service.model.sampling;
  const auto set = [&fields](float& value, std::string_view name, double least, double most) {
    if (const std::optional<double> given = fields.number(name, least, most)) {
      value = static_cast<float>(*given);
    }
  };
  set(params.temperature, "temperature", 0, 100);
  set(params.top_p, "top_p", 0, 1);
  set(params.min_p, "min_p", 0, 1);
  set(params.repetition_penalty, "repetition_penalty", 0.01, 100);
  set(params.frequency_penalty, "frequency_penalty", -2, 2);
  set(params.presence_penalty, "presence_penalty", -2, 2);
  params.top_k = fields.integer("top_k", 0, INT32_MAX).value_or(params.top_k);
  params.logit_bias = read_bias(fields, service);
  const std::optional<int64_t> seed = fields.integer("seed", INT64_MIN);
  params.seed = seed ? static_cast<uint64_t>(*seed) : random_seed();
  return params;
}

StreamFields read_stream(Fields& fields) {
  StreamFields out;
  out.stream = fields.flag("stream").value_or(false);
  if (std::optional<Fields> options = fields.object("stream_options")) {
    if (!out.stream) {
      refuse("invalid_value", "stream_options", "stream_options: only together with \"stream\": true");
    }
    out.include_usage = options->flag("include_usage").value_or(false);
    options->flag("include_obfuscation");  // padding against eavesdroppers: there is none to leave out
    options->done();
  }
  return out;
}

std::vector<std::string> read_stops(Fields& fields, const ApiLimits& limits) {
  std::vector<std::string> stops =
      fields.texts("stop", static_cast<size_t>(limits.max_stops), limits.max_stop_bytes)
          .value_or(std::vector<std::string>());
  for (const std::string& stop : stops) {
    if (stop.empty()) refuse("invalid_value", "stop", "stop: the text is empty");
  }
  return stops;
}

std::optional<int64_t> read_max_tokens(Fields& fields, const Service& service,
                                       std::span<const std::string_view> names, int64_t least) {
  const int64_t most = service.limits.max_tokens > 0 ? service.limits.max_tokens : INT32_MAX;
  std::optional<int64_t> out;
  std::string_view first;
  for (const std::string_view name : names) {
    const std::optional<int64_t> given = fields.integer(name, least, most);
    if (!given) continue;
    if (out && *out != *given) {
      refuse("invalid_value", name, "{} is {}, and {} is {}: only one of the two", first, *out, name, *given);
    }
    out = given;
    first = name;
  }
  return out;
}

void check_text_size(size_t bytes, const Service& service, const ModelFacts& facts, std::string_view param) {
  const int64_t context = service.model.context, most = context * facts.longest_token;
  if (static_cast<int64_t>(bytes) <= most) return;
  refuse("context_length_exceeded", param, "the context holds {} tokens: {} bytes of text cannot fit",
         context, bytes);
}

int64_t tokens_to_generate(size_t prompt_tokens, std::optional<int64_t> asked, const Service& service,
                           std::string_view param) {
  const auto used = static_cast<int64_t>(prompt_tokens);
  const int64_t context = service.model.context, room = context - used;
  if (room < asked.value_or(1)) {
    refuse("context_length_exceeded", param,
           "the context holds {} tokens: the prompt has {}, and {} are to be generated", context, used,
           asked.value_or(1));
  }
  if (asked) return *asked;
  int64_t most = std::min(service.limits.default_max_tokens, room);
  if (service.limits.max_tokens > 0) most = std::min(most, service.limits.max_tokens);
  return most;
}

}  // namespace lapidary::serve
