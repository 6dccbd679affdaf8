// POST /v1/embeddings. The model was trained to continue text, not to embed it: what comes out is its hidden
// state after the final norm, pooled over the tokens and brought to length 1.
#include <bit>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <utility>

#include "serve/api/answering.h"
#include "serve/api/base64.h"
#include "serve/api/endpoints.h"
#include "serve/api/fields.h"
#include "serve/api/sampling_fields.h"

namespace lapidary::serve {
namespace {

namespace json = boost::json;

static_assert(std::endian::native == std::endian::little, "embeddings go out as little-endian floats");

constexpr std::string_view kFormats[] = {"float", "base64"};
constexpr std::string_view kPoolings[] = {"mean", "last"};

class Embeddings : public Answering {
 public:
  Embeddings(Call& call, size_t n, bool as_base64) : Answering(call), base64_(as_base64), vectors_(n) {}

 private:
  void on_embedding(size_t text, std::vector<float> embedding) override {
    vectors_[text] = std::move(embedding);
  }
  Next on_token(size_t, TokenId, const ScoredToken*) override { return Next::stop; }  // none is asked for
  void on_end(size_t, const JobEnd& end) override { tokens_ += end.prompt_tokens; }
  void on_all_ended() override {
    json::array data;
    for (size_t i = 0; i < vectors_.size(); ++i) {
      data.push_back(json::object{{"object", "embedding"}, {"index", i}, {"embedding", shown(vectors_[i])}});
    }
    reply().json(json::object{{"object", "list"},
                              {"data", std::move(data)},
                              {"model", model().name},
                              {"usage", {{"prompt_tokens", tokens_}, {"total_tokens", tokens_}}}});
  }
  json::value shown(const std::vector<float>& values) const {
    if (base64_) return json::string(base64(std::as_bytes(std::span(values))));
    return json::array(values.begin(), values.end());
  }

  bool base64_;
  std::vector<std::vector<float>> vectors_;
  int64_t tokens_ = 0;
};

// One text or one list of ids: what `input` holds, or one of its items.
std::vector<TokenId> read_input(const ServedModel& model, const json::value& value, const std::string& path) {
  std::vector<TokenId> ids;
  if (const json::array* array = value.if_array()) {
    ids = ids_of(*array, path, model.words);
  } else {
    const std::string text = text_of(value, path);
    if (text.empty()) refuse("empty_input", path, "{}: the text is empty", path);
    ids = model.tokenizer->prompt_ids(text, false);
  }
  if (ids.empty()) refuse("empty_input", path, "{}: there is no token to embed", path);
  const auto n = static_cast<int64_t>(ids.size());
  if (n > model.context) {
    refuse("context_length_exceeded", path, "{}: {} tokens, the model's context has room for {}", path, n,
           model.context);
  }
  return ids;
}

std::vector<std::vector<TokenId>> read_inputs(const Service& service, const json::value& input) {
  const json::array* array = input.if_array();
  const bool many = array != nullptr && !array->empty() && !array->front().is_number();
  if (!many) return {read_input(service.model, input, "input")};
  if (static_cast<int64_t>(array->size()) > service.limits.max_inputs) {
    refuse("too_many", "input", "input: {} texts, at most {} are taken at once", array->size(),
           service.limits.max_inputs);
  }
  std::vector<std::vector<TokenId>> inputs;
  for (size_t i = 0; i < array->size(); ++i) {
    inputs.push_back(read_input(service.model, (*array)[i], item_path("input", i)));
  }
  return inputs;
}

void embeddings(Call& call) {
  const Service& service = *call.service;
  const json::object body = parse_body(call.request, service.limits.max_json_depth);
  Fields fields(body, "");
  fields.allow_harmless();
  check_model(fields, service.model);
  const std::vector<std::vector<TokenId>> inputs = read_inputs(service, fields.needed("input"));
  const bool as_base64 = fields.choice("encoding_format", kFormats) == "base64";
  const bool last = fields.choice("pooling", kPoolings) == "last";
  const int64_t size = service.model.spec->d_model;
  if (const auto wanted = fields.integer("dimensions", 1); wanted && *wanted != size) {
    refuse("unsupported_value", "dimensions",
           "dimensions: {}, this model's embeddings have {} numbers and cannot be cut", *wanted, size);
  }
  fields.done();

  std::vector<Job> jobs(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    jobs[i].prompt = inputs[i];
    jobs[i].pooling = last ? Pooling::last : Pooling::mean;
  }
  std::make_shared<Embeddings>(call, inputs.size(), as_base64)->start(std::move(jobs));
}

}  // namespace

std::vector<Endpoint> embeddings_endpoints() {
  return {{"POST", "/v1/embeddings", embeddings}};
}

}  // namespace lapidary::serve
