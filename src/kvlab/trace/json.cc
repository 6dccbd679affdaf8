#include <boost/json.hpp>

#include "kvlab/trace/trace.h"

namespace lapidary::kvlab {
namespace {

namespace json = boost::json;

json::value shape_json(const SeenShape& shape) {
  if (shape.rows == 0) return nullptr;
  return json::array{1, shape.rows, shape.width};
}

json::object token_json(const Token& token) {
  return {{"id", token.id}, {"piece", token.piece}};
}

json::array tokens_json(const std::vector<Token>& tokens) {
  json::array array;
  for (const Token& token : tokens) array.push_back(token_json(token));
  return array;
}

json::object span_json(const CacheSpan& span) {
  return {{"first", span.first}, {"end", span.end}, {"pages", span.pages}, {"bytes", span.bytes}};
}

json::value optional_json(const std::optional<int64_t>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

json::object model_layer_json(const Trace& trace, int64_t index) {
  const LayerSpec& layer = trace.spec.layers[static_cast<size_t>(index)];
  json::object out{{"layer", index}};
  if (!layer.attention) {
    out["role"] = "none";
    for (const char* name : {"owner", "window", "n_heads", "n_kv_heads", "head_dim", "k_eq_v"})
      out[name] = nullptr;
  } else {
    const AttentionSpec& a = *layer.attention;
    out["role"] = layer.owns_kv(index) ? "owner" : "borrower";
    out["owner"] = a.kv_owner;
    out["window"] = a.window;
    out["n_heads"] = a.n_heads;
    out["n_kv_heads"] = a.n_kv_heads;
    out["head_dim"] = a.head_dim;
    out["k_eq_v"] = a.k_eq_v;
  }
  out["position_bytes"] = trace.position_bytes[static_cast<size_t>(index)];
  return out;
}

json::object call_layer_json(const TraceCallLayer& layer) {
  return {
      {"layer", layer.layer},
      {"x", shape_json(layer.x)},
      {"q", shape_json(layer.q)},
      {"k", shape_json(layer.k)},
      {"v", shape_json(layer.v)},
      {"stored_k", shape_json(layer.stored_k)},
      {"stored_v", shape_json(layer.stored_v)},
      {"cache_before", span_json(layer.before)},
      {"cache_after", span_json(layer.after)},
      {"query_position", layer.query_position < 0 ? json::value(nullptr) : json::value(layer.query_position)},
      {"first_in_sight", layer.first_in_sight},
      {"keys_attended", layer.keys_attended},
      {"passes", optional_json(layer.passes)},
      {"kv_written_bytes", layer.kv_written_bytes},
      {"kv_read_bytes", layer.kv_read_bytes}};
}

json::value picked_json(const std::optional<Picked>& picked) {
  if (!picked) return nullptr;
  json::object out = token_json(picked->token);
  out["logit"] = picked->logit;
  if (picked->runner_up) {
    json::object runner_up = token_json(*picked->runner_up);
    runner_up["logit"] = picked->runner_up_logit;
    out["runner_up"] = std::move(runner_up);
    out["gap"] = picked->gap;
    out["gap_ulps"] = picked->gap_ulps;
  } else {
    for (const char* name : {"runner_up", "gap", "gap_ulps"}) out[name] = nullptr;
  }
  return out;
}

json::object call_json(const Trace& trace, const TraceCall& call) {
  json::array layers;
  int64_t held = 0;
  for (const TraceCallLayer& layer : call.layers) {
    layers.push_back(call_layer_json(layer));
    held += layer.after.held() * trace.position_bytes[static_cast<size_t>(layer.layer)];
  }
  return {{"index", call.index},
          {"kind", call.prefill ? "prefill" : "decode"},
          {"first_position", call.before},
          {"fed", tokens_json(call.fed)},
          {"before", call.before},
          {"after", call.after},
          {"picked", picked_json(call.picked)},
          {"logits_xxh3", call.logits ? json::value(hash_text(*call.logits)) : json::value(nullptr)},
          {"seconds", call.seconds},
          {"watched_seconds", call.watched_seconds},
          {"kv_written_bytes", call.kv_written_bytes},
          {"kv_read_bytes", call.kv_read_bytes},
          {"weights_read_bytes", call.weights_read_bytes},
          {"table_rows_read_bytes", call.table_rows_read_bytes},
          {"kv_held_bytes", held},
          {"kv_page_bytes", call.kv_page_bytes},
          {"layers", std::move(layers)}};
}

json::object page_json(const TracePage& page) {
  return {{"layer", page.layer},
          {"first", page.first},
          {"positions", page.positions},
          {"room", page.room},
          {"bytes", page.bytes},
          {"live_bytes", page.live_bytes},
          {"pool", page.sliding ? "sliding" : "global"},
          {"pool_offset", page.pool_offset},
          {"pool_bytes", page.pool_bytes},
          {"xxh3", hash_text(page.hash)}};
}

json::object sight_json(const TraceSight& sight) {
  return {{"layer", sight.layer},       {"window", sight.window}, {"length", sight.length},
          {"in_sight", sight.in_sight}, {"behind", sight.behind}, {"evicted", sight.evicted}};
}

json::object summary_json(const Trace& trace, std::string_view text) {
  std::vector<Token> picked = trace.picked();
  json::value stop_token;
  if (trace.end == TraceEnd::stop_token) {
    stop_token = token_json(picked.back());
    picked.pop_back();
  }
  json::array ids;
  for (const Token& token : picked) ids.push_back(token.id);
  return {{"prompt_tokens", static_cast<int64_t>(trace.prompt.size())},
          {"prefill_calls", trace.prefill_calls()},
          {"decode_calls", trace.decode_calls()},
          {"picked_tokens", static_cast<int64_t>(trace.picked().size())},
          {"cached_positions", trace.length()},
          {"stopped_by", trace_end_name(trace.end)},
          {"stop_token", std::move(stop_token)},
          {"text", text},
          {"ids", std::move(ids)},
          {"kv_written_bytes", trace.kv_written_bytes()}};
}

template <typename T, typename F>
json::array array_of(const std::vector<T>& items, F&& one) {
  json::array array;
  for (const T& item : items) array.push_back(one(item));
  return array;
}

}  // namespace

boost::json::object trace_json(const Trace& trace, const Repro& repro, std::string_view mode,
                               std::string_view text) {
  json::object out = framed("lapidary.kv.trace", repro);
  out["kv_dtype"] = kv_types_name(trace.kv_dtype);
  out["chunk"] = trace.chunk;
  out["context"] = trace.context;
  out["position_bytes"] = trace.bytes_per_position();
  out["prompt"] = json::object{{"mode", mode}, {"tokens", tokens_json(trace.prompt)}};
  json::array layers;
  for (int64_t i = 0; i < trace.spec.n_layers(); ++i) layers.push_back(model_layer_json(trace, i));
  out["layers"] = std::move(layers);
  out["calls"] = array_of(trace.calls, [&](const TraceCall& call) { return call_json(trace, call); });
  out["pages"] = array_of(trace.pages, page_json);
  out["sight"] = array_of(trace.sight, sight_json);
  out["summary"] = summary_json(trace, text);
  out["checks"] = checks_json(trace.checks);
  return out;
}

}  // namespace lapidary::kvlab
