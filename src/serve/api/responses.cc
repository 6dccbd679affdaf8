// POST /v1/responses: a chat in the shapes of OpenAI's newer interface. Nothing is stored.
#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "serve/api/answer_json.h"
#include "serve/api/answering.h"
#include "serve/api/chat_messages.h"
#include "serve/api/chat_plan.h"
#include "serve/api/endpoints.h"
#include "serve/api/guards.h"
#include "serve/api/response_items.h"
#include "serve/api/responses_request.h"
#include "serve/api/sampling_fields.h"
#include "serve/api/texts.h"

namespace lapidary::serve {
namespace {

namespace json = boost::json;

// A request as the scheduler and the reader of its text need it.
struct Order {
  Job job;
  TextOptions text;
  bool one_call = false;
  std::optional<int64_t> top_logprobs;  // nothing: no logprobs
};

// Reads request.chat, which holds what the shared readers know, and nothing else.
Order read_order(const Call& call, const ResponsesRequest& request) {
  const Service& service = *call.service;
  const ModelFacts& facts = *call.facts;
  Fields fields(request.chat, "");
  check_model(fields, service.model);
  const ChatMessages messages =
      read_messages(*fields.array("messages", request.places.size()), "messages", facts);
  const ChatTools tools = read_tools(fields, service.limits);
  const ContentFormat format = read_format(fields, service.limits);
  const ChatOptions options = read_chat_options(fields, facts);
  Order order;
  order.job.sampling = read_sampling(fields, service);
  order.text.stops = read_stops(fields, service.limits);
  static constexpr std::string_view kMost[] = {"max_completion_tokens"};
  const std::optional<int64_t> most = read_max_tokens(fields, service, kMost, 1);
  if (fields.flag("logprobs").value_or(false)) {
    order.top_logprobs = fields.integer("top_logprobs", 0, service.limits.max_logprobs).value_or(0);
  }
  fields.done();
  ChatPlan plan = plan_chat(service, facts, messages, tools, format, options);
  order.job.max_tokens = tokens_to_generate(plan.prompt.size(), most, service, "messages");
  order.job.prompt = std::move(plan.prompt);
  order.job.stop_ids = service.model.stop_ids;
  if (plan.constraint) order.job.constraint.emplace(std::move(*plan.constraint));
  order.job.logprobs = order.top_logprobs;
  if (service.limits.reserved_guard && !facts.reserved.empty()) {
    forbid(order.job.sampling, facts.reserved);
    order.job.logprobs = std::max<int64_t>(order.top_logprobs.value_or(0), 1);
  }
  order.text.tools = plan.tools;
  order.text.in_thought = plan.in_thought;
  order.one_call = plan.one_call;
  return order;
}

class Responding : public Answering {
 public:
  Responding(Call& call, ResponsesRequest request, const Order& order)
      : Answering(call),
        facts_(call.facts),
        stream_(request.stream),
        one_call_(order.one_call),
        top_logprobs_(order.top_logprobs),
        seed_(order.job.sampling.seed),
        echo_(std::move(request.echo)),
        created_(unix_seconds()),
        reader_(*model().tokenizer, model().syntax, order.text),
        items_(request_id(), stream_ ? emit_to_client() : ResponseItems::Emit()) {}

 private:
  ResponseItems::Emit emit_to_client() {
    return [this](std::string_view type, json::object fields) { send(type, std::move(fields)); };
  }

  std::string event(std::string_view type, json::object fields) {
    json::object all{{"type", type}, {"sequence_number", sequence_++}};
    for (auto& field : fields) all[field.key()] = std::move(field.value());
    return fmt::format("event: {}\ndata: {}\n\n", type, json::serialize(all));
  }
  void send(std::string_view type, json::object fields) { reply().write(event(type, std::move(fields))); }

  void on_start(size_t, int64_t) override {
    if (!stream_ || reply().streaming()) return;  // a text that was preempted starts again
    reply().begin_stream();
    send("response.created", {{"response", response("in_progress")}});
    send("response.in_progress", {{"response", response("in_progress")}});
  }

  Next on_token(size_t, TokenId id, const ScoredToken* score) override {
    watch_reserved(score);
    take(reader_.push(id, top_logprobs_ ? score : nullptr));
    if (reader_.stop() || (one_call_ && reader_.has_calls())) return Next::stop;
    if (service().limits.loop_guard && guard_.push(id)) {
      reply().add_guarded(1, 0);
      return Next::stop;
    }
    return Next::go_on;
  }

  void take(const TextDelta& delta) {
    items_.add_reasoning(delta.reasoning);
    json::array logprobs;
    for (const TextToken& token : delta.tokens)
      logprobs.push_back(token_json(*model().tokenizer, token.score, *top_logprobs_));
    items_.add_text(delta.content, std::move(logprobs));
    for (const ToolCall& tool_call : delta.calls) {
      if (one_call_ && calls_++ > 0) break;
      items_.add_call(unique_id("call_"), tool_call.name, tool_call.arguments);
    }
  }

  void on_end(size_t, const JobEnd& end) override {
    take(reader_.finish(end.stop_id));
    cut_ = end.reason == EndReason::max_tokens || end.reason == EndReason::context;
    items_.close(cut_);
    end_ = end;
  }

  void on_all_ended() override {
    json::object whole = response(cut_ ? "incomplete" : "completed");
    if (!stream_) return reply().json(whole);
    send(cut_ ? "response.incomplete" : "response.completed", {{"response", std::move(whole)}});
    reply().end_stream();
  }

  void on_failure(const ApiError& error, const std::string& internal) override {
    if (!reply().streaming()) return Answering::on_failure(error, internal);
    if (!internal.empty()) reply().note_internal(internal);
    json::object failed = response("failed");
    failed["error"] = {{"code", error.code()}, {"message", error.what()}};
    reply().error(error, event("response.failed", {{"response", std::move(failed)}}));
  }

  // What the reserved guard forbids was what the model wanted most.
  void watch_reserved(const ScoredToken* score) {
    if (!service().limits.reserved_guard || score == nullptr || score->best.empty()) return;
    if (std::binary_search(facts_->reserved.begin(), facts_->reserved.end(), score->best[0].id)) {
      reply().add_guarded(0, 1);
    }
  }

  json::value usage() const {
    if (!end_) return nullptr;
    return {{"input_tokens", end_->prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", end_->cached_tokens}}},
            {"output_tokens", end_->generated_tokens},
            {"output_tokens_details", {{"reasoning_tokens", reader_.reasoning_tokens()}}},
            {"total_tokens", end_->prompt_tokens + end_->generated_tokens}};
  }

  json::object response(std::string_view status) const {
    json::object out{{"id", "resp_" + request_id()},
                     {"object", "response"},
                     {"created_at", created_},
                     {"status", status},
                     {"model", model().name},
                     {"output", items_.items()},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"usage", usage()},
                     {"previous_response_id", nullptr},
                     {"store", false},
                     {"background", false},
                     {"truncation", "disabled"},
                     {"seed", seed_}};
    if (status == "incomplete") out["incomplete_details"] = {{"reason", "max_output_tokens"}};
    for (const auto& field : echo_) out[field.key()] = field.value();
    return out;
  }

  const std::shared_ptr<const ModelFacts> facts_;
  const bool stream_, one_call_;
  const std::optional<int64_t> top_logprobs_;
  const uint64_t seed_;
  const json::object echo_;
  const int64_t created_;
  // Used on the scheduler's thread.
  TextReader reader_;
  ResponseItems items_;
  LoopGuard guard_;
  int64_t sequence_ = 0, calls_ = 0;
  bool cut_ = false;
  std::optional<JobEnd> end_;
};

void responses(Call& call) {
  const json::object body = parse_body(call.request, call.service->limits.max_json_depth);
  ResponsesRequest request = read_responses_request(body, *call.service);
  Order order = [&] {
    try {
      return read_order(call, request);
    } catch (const ApiError& error) {
      throw in_words_of(request, error);
    }
  }();
  const auto answering = std::make_shared<Responding>(call, std::move(request), order);
  std::vector<Job> jobs;
  jobs.push_back(std::move(order.job));
  answering->start(std::move(jobs));
}

}  // namespace

std::vector<Endpoint> responses_endpoints() {
  return {{"POST", "/v1/responses", responses}};
}

}  // namespace lapidary::serve
