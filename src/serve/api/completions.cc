// POST /v1/completions
#include <algorithm>
#include <boost/json.hpp>
#include <numeric>
#include <utility>

#include "serve/api/answer_json.h"
#include "serve/api/answering.h"
#include "serve/api/completion_logprobs.h"
#include "serve/api/completion_prompts.h"
#include "serve/api/sampling_fields.h"
#include "serve/api/sse.h"
#include "serve/api/texts.h"

namespace lapidary::serve {
namespace json = boost::json;
namespace {

constexpr std::string_view kLimitNames[] = {"max_tokens"};

struct CompletionFields {
  std::vector<std::vector<TokenId>> prompts;
  SamplingParams sampling;
  StreamFields stream;
  std::vector<std::string> stops;
  std::optional<int64_t> max_tokens, logprobs;
  int64_t n = 1, best_of = 1;  // of each prompt: texts that are given, that are made
  bool echo = false, show_special = false;
};

CompletionFields read_fields(Fields& fields, const Call& call) {
  const Service& service = *call.service;
  const ApiLimits& limits = service.limits;
  check_model(fields, service.model);
  CompletionFields out;
  out.n = fields.integer("n", 1, limits.max_texts).value_or(1);
  out.best_of = fields.integer("best_of", 1, limits.max_texts).value_or(out.n);
  if (out.best_of < out.n) {
    refuse("out_of_range", "best_of", "best_of: expected n ({}) or more, got {}", out.n, out.best_of);
  }
  out.prompts = read_prompts(fields, service, *call.facts, limits.max_texts / out.best_of);
  out.sampling = read_sampling(fields, service);
  out.stream = read_stream(fields);
  if (out.stream.stream && out.best_of > out.n) {
    refuse("invalid_value", "best_of",
           "best_of: the best is known at the end only; not with \"stream\": true");
  }
  out.stops = read_stops(fields, limits);
  out.max_tokens = read_max_tokens(fields, service, kLimitNames, 0);
  out.logprobs = fields.integer("logprobs", 0, limits.max_logprobs);
  out.echo = fields.flag("echo").value_or(false);
  out.show_special = !fields.flag("skip_special_tokens").value_or(true);
  fields.refuse_if_present("suffix", "this server fills in no middle of a text; leave it out");
  fields.allow_harmless();
  fields.done();
  return out;
}

struct CompletionText {
  CompletionText(const ServedModel& model, TextOptions options, int64_t top)
      : reader(*model.tokenizer, model.syntax, std::move(options)), logprobs(*model.tokenizer, top) {}
  TextReader reader;
  CompletionLogprobs logprobs;
  std::string text, finish;  // text: not when streamed
  bool has_echo = false;
  size_t echoed = 0;  // characters of the prompt in front of it
  double sum = 0;     // of the log probabilities of its tokens
  int64_t tokens = 0;
  double mean() const { return tokens > 0 ? sum / static_cast<double>(tokens) : 0; }
};

class CompletionAnswer : public Answering {
 public:
  CompletionAnswer(Call& call, CompletionFields fields)
      : Answering(call),
        facts_(call.facts),
        fields_(std::move(fields)),
        id_("cmpl-" + call.request.id),
        created_(unix_seconds()) {
    for (const std::vector<TokenId>& prompt : fields_.prompts) {
      usage_.prompt_tokens += static_cast<int64_t>(prompt.size());
      for (int64_t i = 0; i < fields_.best_of; ++i) {
        texts_.push_back(std::make_unique<CompletionText>(
            model(), TextOptions{true, fields_.show_special, false, false, fields_.stops},
            fields_.logprobs.value_or(0)));
      }
    }
  }

 protected:
  void on_start(size_t text, int64_t cached_tokens) override {
    if (text % static_cast<size_t>(fields_.best_of) == 0) usage_.cached_tokens += cached_tokens;
    if (fields_.echo && !fields_.logprobs) echo(text, {});
  }
  void on_prompt_scores(size_t text, std::vector<ScoredToken> scores) override {
    if (fields_.echo && fields_.logprobs) echo(text, scores);
  }

  Next on_token(size_t text, TokenId id, const ScoredToken* score) override {
    CompletionText& state = *texts_[text];
    if (fields_.echo && !state.has_echo) echo(text, {});  // a prompt of one token, which has no scores
    if (score != nullptr) {
      state.sum += static_cast<double>(score->token.logprob);
      state.tokens++;
    }
    give(text, state.reader.push(id, fields_.logprobs ? score : nullptr));
    return state.reader.stop() ? Next::stop : Next::go_on;
  }

  void on_end(size_t text, const JobEnd& end) override {
    CompletionText& state = *texts_[text];
    if (fields_.echo && !state.has_echo) echo(text, {});
    give(text, state.reader.finish(end.stop_id));
    const bool nothing_wanted = fields_.max_tokens == 0;
    state.finish = nothing_wanted ? "length" : std::string(finish_reason(end, false));
    usage_.completion_tokens += end.generated_tokens;
    if (!fields_.stream.stream) return;
    json::object choice = this->choice(text, "", nullptr);
    choice["finish_reason"] = state.finish;
    json::object body = chunk({std::move(choice)});
    body["seed"] = fields_.sampling.seed;
    send(body);
  }

  void on_all_ended() override {
    if (!fields_.stream.stream) return reply().json(whole());
    if (fields_.stream.include_usage) {
      json::object body = chunk({});
      body["usage"] = usage_.json();
      send(body);
    }
    reply().write(std::string(kSseDone));
    reply().end_stream();
  }

 private:
  // The prompt in front of the text, as its ids spell it, and what was thought of each of them.
  void echo(size_t text, const std::vector<ScoredToken>& scores) {
    const std::vector<TokenId>& prompt = fields_.prompts[text / static_cast<size_t>(fields_.best_of)];
    CompletionText& state = *texts_[text];
    state.has_echo = true;
    StreamDecoder decoder(*model().tokenizer, fields_.show_special);
    std::string said;
    for (size_t i = 0; i < prompt.size(); ++i) {
      if (fields_.logprobs) {
        i == 0 ? state.logprobs.add_first(prompt[0]) : state.logprobs.add(scores.at(i - 1), state.echoed);
      }
      const std::string piece = decoder.push(prompt[i]);
      state.echoed += characters_of(piece);
      said += piece;
    }
    const std::string rest = decoder.flush();
    state.echoed += characters_of(rest);
    put(text, said + rest);
  }

  void give(size_t text, const TextDelta& delta) {
    CompletionText& state = *texts_[text];
    for (const TextToken& token : delta.tokens) state.logprobs.add(token.score, state.echoed + token.begin);
    if (!delta.empty()) put(text, delta.content);
  }

  void put(size_t text, const std::string& more) {
    CompletionText& state = *texts_[text];
    if (!fields_.stream.stream) {
      state.text += more;
      return;
    }
    json::value logprobs;
    if (fields_.logprobs) logprobs = state.logprobs.take();
    send(chunk({choice(text, more, std::move(logprobs))}));
  }

  json::object common() const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", model().name},
            {"system_fingerprint", facts_->fingerprint}};
  }
  json::object chunk(json::array choices) const {
    json::object body = common();
    body["choices"] = std::move(choices);
    if (fields_.stream.include_usage) body["usage"] = nullptr;
    return body;
  }
  static json::object choice(size_t index, std::string_view text, json::value logprobs) {
    return {{"index", index},
            {"text", json::string(text.data(), text.size())},
            {"logprobs", std::move(logprobs)},
            {"finish_reason", nullptr}};
  }
  // The first bytes of a stream: from here on errors are events.
  void send(const json::object& body) {
    if (!std::exchange(begun_, true)) reply().begin_stream();
    reply().write(sse_event(json::serialize(body)));
  }

  // Of each prompt its n best texts, by the mean log probability of their tokens; ties go to the earlier.
  std::vector<size_t> chosen() const {
    const auto made = static_cast<size_t>(fields_.best_of), wanted = static_cast<size_t>(fields_.n);
    std::vector<size_t> all;
    for (size_t first = 0; first < texts_.size(); first += made) {
      std::vector<size_t> some(made);
      std::iota(some.begin(), some.end(), first);
      if (made > wanted) {
        std::stable_sort(some.begin(), some.end(),
                         [this](size_t a, size_t b) { return texts_[a]->mean() > texts_[b]->mean(); });
      }
      all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(wanted));
    }
    return all;
  }

  json::object whole() {
    json::array choices;
    for (const size_t text : chosen()) {
      CompletionText& state = *texts_[text];
      json::value logprobs;
      if (fields_.logprobs) logprobs = state.logprobs.take();
      json::object one = choice(choices.size(), state.text, std::move(logprobs));
      one["finish_reason"] = state.finish;
      choices.push_back(std::move(one));
    }
    json::object body = common();
    body["choices"] = std::move(choices);
    body["usage"] = usage_.json();
    body["seed"] = fields_.sampling.seed;
    return body;
  }

  const std::shared_ptr<const ModelFacts> facts_;
  const CompletionFields fields_;
  const std::string id_;
  const int64_t created_;
  std::vector<std::unique_ptr<CompletionText>> texts_;  // of the first prompt, of the second, ...
  Usage usage_;
  bool begun_ = false;
};

std::vector<Job> jobs_of(const CompletionFields& fields, const Service& service) {
  std::vector<Job> jobs;
  for (size_t i = 0; i < fields.prompts.size(); ++i) {
    const std::vector<TokenId>& prompt = fields.prompts[i];
    const std::string path = fields.prompts.size() > 1 ? item_path("prompt", i) : "prompt";
    const int64_t most = tokens_to_generate(prompt.size(), fields.max_tokens, service, path);
    for (int64_t text = 0; text < fields.best_of; ++text) {
      Job job;
      job.prompt = prompt;
      job.max_tokens = most;
      job.stop_ids = service.model.stop_ids;
      job.sampling = fields.sampling;
      job.sampling.stream = static_cast<uint64_t>(text);
      job.logprobs = fields.logprobs;
      if (fields.best_of > fields.n && !job.logprobs) job.logprobs = 0;
      if (fields.echo) job.prompt_logprobs = fields.logprobs;
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

void completions(Call& call) {
  const Service& service = *call.service;
  const json::object body = parse_body(call.request, service.limits.max_json_depth);
  Fields fields(body, "");
  CompletionFields wanted = read_fields(fields, call);
  std::vector<Job> jobs = jobs_of(wanted, service);
  const auto answer = std::make_shared<CompletionAnswer>(call, std::move(wanted));
  answer->start(std::move(jobs));
}

}  // namespace

std::vector<Endpoint> completions_endpoints() {
  return {{"POST", "/v1/completions", completions}};
}

}  // namespace lapidary::serve
