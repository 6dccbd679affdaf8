// POST /v1/chat/completions
#include <algorithm>
#include <boost/json.hpp>

#include "serve/api/answer_json.h"
#include "serve/api/answering.h"
#include "serve/api/chat_plan.h"
#include "serve/api/guards.h"
#include "serve/api/sampling_fields.h"
#include "serve/api/sse.h"
#include "serve/api/texts.h"

namespace lapidary::serve {
namespace json = boost::json;
namespace {

constexpr std::string_view kLimitNames[] = {"max_completion_tokens", "max_tokens"};

struct ChatFields {
  json::array const* messages = nullptr;
  SamplingParams sampling;
  StreamFields stream;
  std::vector<std::string> stops;
  std::optional<int64_t> max_tokens;
  int64_t n = 1;
  std::optional<int64_t> top_logprobs;  // nothing: no logprobs
  ChatTools tools;
  ContentFormat format;
  ChatOptions options;
};

std::optional<int64_t> read_logprobs(Fields& fields, const ApiLimits& limits) {
  const bool on = fields.flag("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.integer("top_logprobs", 0, limits.max_logprobs);
  if (top && *top > 0 && !on) {
    refuse("invalid_value", "top_logprobs", "top_logprobs: only together with \"logprobs\": true");
  }
  if (!on) return {};
  return top.value_or(0);
}

ChatFields read_fields(Fields& fields, const Call& call) {
  const Service& service = *call.service;
  check_model(fields, service.model);
  ChatFields out;
  fields.needed("messages");
  out.messages = fields.array("messages", static_cast<size_t>(service.limits.max_messages));
  out.sampling = read_sampling(fields, service);
  out.stream = read_stream(fields);
  out.stops = read_stops(fields, service.limits);
  out.max_tokens = read_max_tokens(fields, service, kLimitNames, 1);
  out.n = fields.integer("n", 1, service.limits.max_texts).value_or(1);
  out.top_logprobs = read_logprobs(fields, service.limits);
  out.tools = read_tools(fields, service.limits);
  out.format = read_format(fields, service.limits);
  out.options = read_chat_options(fields, *call.facts);
  for (const std::string_view name : {"audio", "modalities", "prediction", "web_search_options"}) {
    if (name == "modalities" && fields.raw(name) != nullptr &&
        *fields.raw(name) == json::value(json::array{"text"})) {
      continue;
    }
    fields.refuse_if_present(name, "this server does not do it");
  }
  fields.allow_harmless();
  fields.done();
  return out;
}

struct ChatText {
  ChatText(const ServedModel& model, TextOptions options)
      : reader(*model.tokenizer, model.syntax, std::move(options)) {}
  TextReader reader;
  LoopGuard guard;
  std::optional<int64_t> loop;  // the period with which it repeats itself
  std::string content, reasoning, finish;
  json::array calls, logprobs;  // calls: all of them; logprobs: not when streamed
  int64_t call_count = 0;
};

class ChatAnswer : public Answering {
 public:
  ChatAnswer(Call& call, const ChatFields& fields, const ChatPlan& plan)
      : Answering(call),
        facts_(call.facts),
        stream_(fields.stream),
        top_logprobs_(fields.top_logprobs),
        one_call_(plan.one_call),
        seed_(fields.sampling.seed),
        id_("chatcmpl-" + call.request.id),
        created_(unix_seconds()) {
    usage_.prompt_tokens = static_cast<int64_t>(plan.prompt.size());
    for (int64_t i = 0; i < fields.n; ++i) {
      texts_.push_back(std::make_unique<ChatText>(
          model(), TextOptions{false, false, plan.tools, plan.in_thought, fields.stops}));
    }
  }

 protected:
  void on_start(size_t text, int64_t cached_tokens) override {
    if (text == 0) usage_.cached_tokens = cached_tokens;
  }

  Next on_token(size_t text, TokenId id, const ScoredToken* score) override {
    ChatText& state = *texts_[text];
    watch_reserved(score);
    give(text, state.reader.push(id, top_logprobs_ ? score : nullptr));
    if (state.reader.stop() || (one_call_ && state.call_count > 0)) return Next::stop;
    if (service().limits.loop_guard && (state.loop = state.guard.push(id))) {
      reply().add_guarded(1, 0);
      return Next::stop;
    }
    return Next::go_on;
  }

  void on_end(size_t text, const JobEnd& end) override {
    ChatText& state = *texts_[text];
    give(text, state.reader.finish(end.stop_id));
    state.finish = finish_reason(end, state.reader.has_calls());
    usage_.completion_tokens += end.generated_tokens;
    usage_.reasoning_tokens += state.reader.reasoning_tokens();
    if (!stream_.stream) return;
    begin();
    json::object choice = piece(text, {}, nullptr);
    choice["finish_reason"] = state.finish;
    add_loop(state, choice);
    json::object body = chunk({std::move(choice)});
    body["seed"] = seed_;
    send(body);
  }

  void on_all_ended() override {
    if (stream_.stream) {
      if (stream_.include_usage) {
        json::object body = chunk({});
        body["usage"] = usage_.json();
        send(body);
      }
      reply().write(std::string(kSseDone));
      return reply().end_stream();
    }
    json::object body = common("chat.completion");
    json::array choices;
    for (size_t i = 0; i < texts_.size(); ++i) choices.push_back(whole(i));
    body["choices"] = std::move(choices);
    body["usage"] = usage_.json();
    body["seed"] = seed_;
    reply().json(body);
  }

 private:
  json::object common(std::string_view object) const {
    return {{"id", id_},
            {"object", json::string(object.data(), object.size())},
            {"created", created_},
            {"model", model().name},
            {"system_fingerprint", facts_->fingerprint}};
  }
  json::object chunk(json::array choices) const {
    json::object body = common("chat.completion.chunk");
    body["choices"] = std::move(choices);
    if (stream_.include_usage) body["usage"] = nullptr;
    return body;
  }
  static json::object piece(size_t text, json::object delta, json::value logprobs) {
    return {{"index", text},
            {"delta", std::move(delta)},
            {"logprobs", std::move(logprobs)},
            {"finish_reason", nullptr}};
  }
  void send(const json::object& body) { reply().write(sse_event(json::serialize(body))); }

  // The first bytes: from here on errors are events.
  void begin() {
    if (std::exchange(begun_, true)) return;
    reply().begin_stream();
    for (size_t i = 0; i < texts_.size(); ++i) {
      send(chunk({piece(i, {{"role", "assistant"}, {"content", ""}}, nullptr)}));
    }
  }

  void watch_reserved(const ScoredToken* score) {
    if (!service().limits.reserved_guard || score == nullptr || score->best.empty()) return;
    if (std::binary_search(facts_->reserved.begin(), facts_->reserved.end(), score->best[0].id)) {
      reply().add_guarded(0, 1);
    }
  }

  static void add_loop(const ChatText& state, json::object& choice) {
    if (state.loop) choice["finish_details"] = {{"type", "repetition"}, {"period", *state.loop}};
  }

  json::array logprobs_of(const TextDelta& delta) const {
    json::array out;
    for (const TextToken& token : delta.tokens) {
      out.push_back(token_json(*model().tokenizer, token.score, *top_logprobs_));
    }
    return out;
  }

  void give(size_t text, TextDelta delta) {
    ChatText& state = *texts_[text];
    if (one_call_ && state.call_count + static_cast<int64_t>(delta.calls.size()) > 1) {
      delta.calls.resize(state.call_count > 0 ? 0 : 1);
    }
    stream_.stream ? give_piece(text, state, delta) : collect(state, delta);
    state.call_count += static_cast<int64_t>(delta.calls.size());
  }

  void collect(ChatText& state, const TextDelta& delta) const {
    state.content += delta.content;
    state.reasoning += delta.reasoning;
    for (const ToolCall& call : delta.calls) state.calls.push_back(call_json(call));
    for (json::value& entry : logprobs_of(delta)) state.logprobs.push_back(std::move(entry));
  }

  void give_piece(size_t text, const ChatText& state, const TextDelta& delta) {
    begin();
    if (delta.empty()) return;
    json::object out;
    if (!delta.reasoning.empty()) out["reasoning_content"] = delta.reasoning;
    if (!delta.content.empty()) out["content"] = delta.content;
    json::array calls;
    for (const ToolCall& call : delta.calls) {
      json::object entry = call_json(call);
      entry["index"] = state.call_count + static_cast<int64_t>(calls.size());
      calls.push_back(std::move(entry));
    }
    if (!calls.empty()) out["tool_calls"] = std::move(calls);
    json::value logprobs;
    if (top_logprobs_) logprobs = {{"content", logprobs_of(delta)}, {"refusal", nullptr}};
    send(chunk({piece(text, std::move(out), std::move(logprobs))}));
  }

  json::object whole(size_t text) {
    ChatText& state = *texts_[text];
    json::object message{{"role", "assistant"}};
    const bool silent = state.content.empty() && !state.calls.empty();
    message["content"] = silent ? json::value() : json::value(state.content);
    if (!state.reasoning.empty()) message["reasoning_content"] = state.reasoning;
    if (!state.calls.empty()) message["tool_calls"] = std::move(state.calls);
    message["refusal"] = nullptr;
    json::object choice{{"index", text}, {"message", std::move(message)}, {"finish_reason", state.finish}};
    if (top_logprobs_) {
      choice["logprobs"] = {{"content", std::move(state.logprobs)}, {"refusal", nullptr}};
    } else {
      choice["logprobs"] = nullptr;
    }
    add_loop(state, choice);
    return choice;
  }

  const std::shared_ptr<const ModelFacts> facts_;
  const StreamFields stream_;
  const std::optional<int64_t> top_logprobs_;
  const bool one_call_;
  const uint64_t seed_;
  const std::string id_;
  const int64_t created_;
  std::vector<std::unique_ptr<ChatText>> texts_;
  Usage usage_;
  bool begun_ = false;
};

void chat_completions(Call& call) {
  const Service& service = *call.service;
  const json::object body = parse_body(call.request, service.limits.max_json_depth);
  Fields fields(body, "");
  ChatFields chat = read_fields(fields, call);
  const ChatMessages messages = read_messages(*chat.messages, "messages", *call.facts);
  ChatPlan plan = plan_chat(service, *call.facts, messages, chat.tools, chat.format, chat.options);
  const int64_t most = tokens_to_generate(plan.prompt.size(), chat.max_tokens, service, "messages");

  SamplingParams sampling = chat.sampling;
  std::optional<int64_t> logprobs = chat.top_logprobs;
  if (service.limits.reserved_guard && !call.facts->reserved.empty()) {
    forbid(sampling, call.facts->reserved);
    logprobs = std::max<int64_t>(logprobs.value_or(0), 1);
  }
  const auto answer = std::make_shared<ChatAnswer>(call, chat, plan);
  std::vector<Job> jobs(static_cast<size_t>(chat.n));
  for (size_t i = 0; i < jobs.size(); ++i) {
    Job& job = jobs[i];
    job.prompt = plan.prompt;
    job.max_tokens = most;
    job.stop_ids = service.model.stop_ids;
    job.sampling = sampling;
    job.sampling.stream = i;
    job.logprobs = logprobs;
    if (plan.constraint) job.constraint.emplace(plan.constraint->fork());
  }
  answer->start(std::move(jobs));
}

}  // namespace

std::vector<Endpoint> chat_endpoints() {
  return {{"POST", "/v1/chat/completions", chat_completions}};
}

}  // namespace lapidary::serve
