#include <boost/json.hpp>
#include <cmath>

#include "base/error.h"
#include "base/kv_types.h"
#include "kvlab/recompute/recompute.h"

namespace lapidary::kvlab {
namespace {

namespace json = boost::json;

std::string type_name(DType type) {
  return std::string(type == DType::i8 ? kv_type_name(type) : dtype_name(type));
}

// Readers of JSON often hold numbers as doubles.
int64_t ulps_number(uint64_t ulps) {
  return static_cast<int64_t>(std::min(ulps, uint64_t{1} << 53));
}

json::object kv_json(const KvDifference& d) {
  return {{"elements", d.elements},
          {"equal", d.equal},
          {"equal_percent", percent_equal(d.equal, d.elements)},
          {"max_abs_diff_k", d.max_abs_k},
          {"max_abs_diff_v", d.max_abs_v},
          {"max_ulps", ulps_number(d.max_ulps)},
          {"ulps_histogram", json::value_from(d.histogram)}};
}

json::object difference_json(const Difference& d) {
  return {{"elements", d.elements},
          {"equal", d.equal},
          {"equal_percent", percent_equal(d.equal, d.elements)},
          {"max_abs_diff", d.max_abs}};
}

json::value error_json(const std::optional<TruthError>& error) {
  if (!error) return nullptr;
  return json::object{{"max_error_k", error->max_k},           {"max_error_v", error->max_v},
                      {"rms_error_kv", error->rms_kv},         {"max_error_hidden", error->max_hidden},
                      {"max_error_logits", error->max_logits}, {"rms_error_logits", error->rms_logits}};
}

json::value divergence_json(const std::optional<Divergence>& first) {
  if (!first) return nullptr;
  json::object out{{"op", first->op}, {"position", first->position}};
  out["layer"] = first->layer < 0 ? json::value(nullptr) : json::value(first->layer);
  return out;
}

using Piece = FunctionRef<std::string(int32_t)>;

json::object flip_json(const Flip& flip, Piece piece) {
  json::object out{{"index", flip.index}, {"position", flip.position}};
  const auto add = [&](const std::string& whose, const Choice& choice) {
    out[whose + "_id"] = choice.id;
    out[whose + "_piece"] = piece(choice.id);
    out[whose + "_second_id"] = choice.second_id;
    out[whose + "_second_piece"] = piece(choice.second_id);
    out[whose + "_gap"] = choice.gap();
    out[whose + "_gap_ulps"] = ulps_number(choice.gap_ulps);
  };
  add("cached", flip.cached);
  add("recomputed", flip.recomputed);
  return out;
}

json::object recomputation_json(const Recomputation& r, const std::vector<int32_t>& tokens, Piece piece) {
  json::array layers, hidden, equal_map, ulps_map, flips;
  for (const LayerDifference& layer : r.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"kv", kv_json(layer.all())},
                      {"prompt", kv_json(layer.prompt)},
                      {"decode", kv_json(layer.decode)},
                      {"hidden", difference_json(r.hidden[static_cast<size_t>(layer.layer)])}});
  }
  for (const Difference& layer : r.hidden) hidden.push_back(difference_json(layer));
  for (const auto& row : r.equal_map) equal_map.push_back(json::value_from(row));
  for (const auto& row : r.ulps_map) {
    json::array numbers;
    for (const uint64_t ulps : row) numbers.push_back(ulps_number(ulps));
    ulps_map.push_back(std::move(numbers));
  }
  for (const Flip& flip : r.flips) flips.push_back(flip_json(flip, piece));
  json::object out{{"name", r.name()},
                   {"chunk", r.chunk},
                   {"batch", r.batch},
                   {"threads", r.threads},
                   {"calls", r.calls},
                   {"same_bits", r.same(static_cast<int64_t>(tokens.size()))},
                   {"kv", kv_json(r.kv())},
                   {"prompt", kv_json(r.prompt())},
                   {"decode", kv_json(r.decode())},
                   {"hidden", difference_json(r.all_hidden())}};
  out["logits"] = {
      {"rows", tokens.size()}, {"equal_rows", r.equal_logit_rows}, {"max_abs_diff", r.max_logit_difference}};
  out["first_divergence"] = divergence_json(r.first);
  out["layers"] = std::move(layers);
  out["hidden_layers"] = std::move(hidden);
  out["map"] = {{"equal_percent", std::move(equal_map)}, {"max_ulps", std::move(ulps_map)}};
  out["flips"] = std::move(flips);
  out["error"] = error_json(r.error);
  return out;
}

json::object run_json(const RunResult& run, int64_t prompt_tokens, Piece piece) {
  json::array pieces, generated, recomputations;
  for (const int32_t id : run.tokens) pieces.push_back(json::value_from(piece(id)));
  for (size_t i = 0; i < run.generated.size(); ++i) {
    const Choice& c = run.generated[i];
    generated.push_back({{"index", i + 1},
                         {"position", prompt_tokens - 1 + static_cast<int64_t>(i)},
                         {"id", c.id},
                         {"piece", piece(c.id)},
                         {"second_id", c.second_id},
                         {"second_piece", piece(c.second_id)},
                         {"logit", c.logit},
                         {"second_logit", c.second_logit},
                         {"gap", c.gap()},
                         {"gap_ulps", ulps_number(c.gap_ulps)}});
  }
  for (const Recomputation& r : run.recomputations)
    recomputations.push_back(recomputation_json(r, run.tokens, piece));
  json::object out{{"name", run.facts.name},
                   {"executor", run.facts.executor},
                   {"numeric_mode", run.facts.numeric_mode},
                   {"key_type", type_name(run.facts.keys)},
                   {"value_type", type_name(run.facts.values)},
                   {"logit_type", type_name(run.facts.logits)},
                   {"promised_exact", run.facts.promised_exact},
                   {"passed", run.passed()},
                   {"tokens", json::value_from(run.tokens)}};
  out["pieces"] = std::move(pieces);
  out["generated"] = std::move(generated);
  out["cached_error"] = error_json(run.cached_error);
  out["recomputations"] = std::move(recomputations);
  out["verdict"] = run.verdict();
  out["distance"] = run.distance();
  return out;
}

}  // namespace

json::object recompute_json(const RecomputeReport& report, const Repro& repro, Piece piece) {
  json::object out = framed("lapidary.kv.recompute", repro);
  out["prompt_tokens"] = report.prompt_tokens;
  out["decode_calls"] = report.decode_calls;
  out["positions"] = report.positions();
  out["owner_layers"] = json::value_from(report.owner_layers);
  out["kv_elements"] = report.kv_elements();
  out["reference"] = {{"dtype", report.reference_type}, {"missing", report.reference_missing}};
  out["passed"] = report.passed();
  json::array runs;
  for (const RunResult& run : report.runs) runs.push_back(run_json(run, report.prompt_tokens, piece));
  out["runs"] = std::move(runs);
  return out;
}

}  // namespace lapidary::kvlab
