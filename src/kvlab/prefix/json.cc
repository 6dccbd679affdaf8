#include <boost/json.hpp>

#include "kvlab/prefix/prefix.h"

namespace lapidary::kvlab {
namespace {

namespace json = boost::json;

json::object token_json(const Token& token) {
  return {{"id", token.id}, {"piece", token.piece}};
}

json::object eviction_json(const PrefixEviction& e) {
  return {{"sequence", e.origin}, {"tokens", e.tokens},     {"evicted_by", e.evicted_by},
          {"age_prompts", e.age}, {"idle_prompts", e.idle}, {"reuses", e.reuses}};
}

json::object prompt_json(const PrefixReport& report, const PrefixPrompt& p) {
  json::object out{{"index", p.index},
                   {"tokens", p.tokens},
                   {"hit_tokens", p.hit_tokens},
                   {"computed_tokens", p.computed_tokens()},
                   {"reusable_tokens", p.reusable_tokens},
                   {"lost_tokens", p.lost_tokens()},
                   {"outcome", is_hit(p.reason) ? "hit" : "miss"},
                   {"reason", prefix_reason_name(p.reason)},
                   {"why", prefix_why(report, p)},
                   {"source", p.source ? json::value(*p.source) : json::value(nullptr)},
                   {"pages_shared", p.pages_shared},
                   {"pages_copied", p.pages_copied},
                   {"bytes_not_recomputed", p.bytes_not_recomputed},
                   {"seconds", p.seconds}};
  if (p.differs)
    out["differs"] = json::object{{"at", p.differs->at},
                                  {"kept", token_json(p.differs->kept)},
                                  {"prompt", token_json(p.differs->prompt)}};
  if (p.eviction) out["eviction"] = eviction_json(*p.eviction);
  if (p.window)
    out["window"] = json::object{{"source", p.window->origin},
                                 {"layer", p.window->layer},
                                 {"window", p.window->window},
                                 {"wanted", p.window->wanted},
                                 {"earliest_restart", p.window->earliest}};
  if (p.reason == PrefixReason::header_mismatch)
    out["mismatch"] = json::object{{"field", report.state->field}};
  if (p.logits_equal) {
    out["fresh_seconds"] = p.fresh_seconds;
    out["logits_equal"] = *p.logits_equal;
    out["bytes_saved_by_counter"] = *p.bytes_saved_by_counter;
  }
  out["first_token"] = token_json(p.first_token);
  out["logits_xxh3"] = hash_text(p.logits);
  out["evicted"] = json::value_from(p.evicted);
  return out;
}

json::value state_json(const std::optional<PrefixStateReport>& state) {
  if (!state) return nullptr;
  json::object out{{"name", state->name}, {"tokens", state->tokens}, {"loaded", state->loaded}};
  out["field"] = state->loaded ? json::value(nullptr) : json::value(state->field);
  out["refusal"] = state->loaded ? json::value(nullptr) : json::value(state->refusal);
  return out;
}

json::array histogram_json(const std::vector<PrefixEviction>& evictions, int64_t PrefixEviction::*field) {
  std::vector<int64_t> values;
  for (const PrefixEviction& e : evictions) values.push_back(e.*field);
  json::array bars;
  for (const HistogramBar& bar : doubling_histogram(values))
    bars.push_back(json::object{{"from", bar.from}, {"to", bar.to}, {"count", bar.count}});
  return bars;
}

json::object totals_json(const PrefixReport& report) {
  const PrefixTotals t = report.totals();
  json::object by_reason;
  for (const PrefixReason reason : kPrefixReasons)
    by_reason[prefix_reason_name(reason)] = t.by_reason.at(reason);
  json::object out{{"prompts", static_cast<int64_t>(report.prompts.size())},
                   {"tokens", t.tokens},
                   {"hit_tokens", t.hit_tokens},
                   {"computed_tokens", t.tokens - t.hit_tokens},
                   {"most_hit_tokens", t.most_hit_tokens},
                   {"hit_rate_tokens", t.hit_rate()},
                   {"reusable_tokens", t.reusable_tokens},
                   {"lost_tokens", t.reusable_tokens - t.hit_tokens},
                   {"lost_evicted_tokens", t.lost_evicted},
                   {"lost_window_tokens", t.lost_window},
                   {"lost_mismatch_tokens", t.lost_mismatch},
                   {"hits", t.hits},
                   {"misses", t.misses},
                   {"by_reason", std::move(by_reason)},
                   {"pages_shared", t.pages_shared},
                   {"pages_copied", t.pages_copied},
                   {"bytes_not_recomputed", t.bytes_not_recomputed},
                   {"seconds", t.seconds}};
  if (report.options.check) out["fresh_seconds"] = t.fresh_seconds;
  return out;
}

}  // namespace

boost::json::object prefix_json(const PrefixReport& report, const Repro& repro) {
  json::object out = framed("lapidary.kv.prefix", repro);
  out["slots"] = report.options.slots;
  out["keep_behind"] = report.options.keep_behind;
  out["kv_dtype"] = kv_types_name(report.kv_dtype);
  out["position_bytes"] = report.bytes_per_position;
  out["checked"] = report.options.check;
  out["state"] = state_json(report.state);
  json::array prompts, evictions;
  for (const PrefixPrompt& p : report.prompts) prompts.push_back(prompt_json(report, p));
  for (const PrefixEviction& e : report.evictions) evictions.push_back(eviction_json(e));
  out["prompts"] = std::move(prompts);
  out["evictions"] = std::move(evictions);
  out["histograms"] = json::object{{"age_prompts", histogram_json(report.evictions, &PrefixEviction::age)},
                                   {"idle_prompts", histogram_json(report.evictions, &PrefixEviction::idle)},
                                   {"reuses", histogram_json(report.evictions, &PrefixEviction::reuses)}};
  out["totals"] = totals_json(report);
  out["checks"] = checks_json(report.checks);
  return out;
}

}  // namespace lapidary::kvlab
