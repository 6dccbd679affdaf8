#include <boost/json.hpp>

#include "base/error.h"
#include "kvlab/offload/offload.h"

namespace lapidary::kvlab {
namespace {

namespace json = boost::json;
using kv_state::LayerEntry;

std::string_view kind_name(uint32_t kind) {
  constexpr std::string_view kNames[] = {"no attention", "owner", "borrower"};
  return kNames[std::min<uint32_t>(kind, 2)];
}

json::value optional_json(const std::optional<double>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

json::object layer_json(const LayerFacts& layer) {
  const LayerEntry& e = layer.entry;
  json::object out{{"layer", e.layer}, {"kind", kind_name(e.kind)}};
  if (e.kind == kv_state::kNoAttention) return out;
  out["owner"] = e.owner;
  out["window"] = e.window;
  out["n_kv_heads"] = e.n_kv_heads;
  out["head_dim"] = e.head_dim;
  out["rope"] = rope_kind_name(static_cast<RopeKind>(e.rope_kind));
  out["rope_theta"] = e.rope_theta;
  out["first_position"] = e.first;
  out["positions"] = layer.positions;
  out["position_bytes"] = layer.position_bytes;
  out["kv_bytes"] = layer.kv_bytes;
  out["pages"] = layer.pages.size();
  if (e.kind != kv_state::kOwner) return out;
  out["keys_xxh3"] = hash_text(layer.keys);
  out["values_xxh3"] = hash_text(layer.values);
  json::array pages;
  for (const PageHash& page : layer.pages)
    pages.push_back(json::object{{"first_position", page.first},
                                 {"positions", page.positions},
                                 {"kv_bytes", page.kv_bytes},
                                 {"keys_xxh3", hash_text(page.keys)},
                                 {"values_xxh3", hash_text(page.values)}});
  out["page_hashes"] = std::move(pages);
  return out;
}

json::object state_json(const StateFacts& f) {
  json::array layers;
  for (const LayerFacts& layer : f.layers) layers.push_back(layer_json(layer));
  const std::string_view arithmetic(f.header.arithmetic, sizeof f.header.arithmetic);
  return {{"version", f.header.version},
          {"model_hash", hash_text(f.header.model)},
          {"arithmetic", arithmetic.substr(0, arithmetic.find('\0'))},
          {"kv_dtype", kv_types_name(f.types)},
          {"length", f.header.length},
          {"earliest_restart", f.header.earliest_restart},
          {"positions_per_page", f.header.block},
          {"bytes", f.bytes},
          {"header_bytes", sizeof(kv_state::Header)},
          {"layer_map_bytes", f.layer_map_bytes},
          {"token_bytes", f.token_bytes},
          {"attachment_bytes", f.attachment_bytes},
          {"kv_bytes", f.kv_bytes},
          {"checksum_bytes", f.checksum_bytes},
          {"expected_kv_bytes", f.expected_kv_bytes},
          {"needed_kv_bytes", f.needed_kv_bytes},
          {"shared_bytes_saved", f.shared_bytes_saved},
          {"pages", f.pages},
          {"layers", std::move(layers)}};
}

json::object replay_json(const ReplayFacts& r) {
  json::array lost;
  for (const ReplayFacts::Lost& l : r.lost)
    lost.push_back(json::object{{"layer", l.layer}, {"first_position", l.first}, {"positions", l.positions}});
  return {{"earliest_restart", r.earliest},     {"boundary", r.boundary},
          {"lost_positions", std::move(lost)},  {"keep_behind", r.keep_behind},
          {"extra_kv_bytes", r.extra_kv_bytes}, {"recompute_tokens", r.recompute_tokens}};
}

json::array checks_json(const std::vector<OffloadCheck>& checks) {
  json::array out;
  for (const OffloadCheck& c : checks)
    out.push_back(json::object{{"name", c.name}, {"way", c.way}, {"passed", c.passed}, {"detail", c.detail}});
  return out;
}

json::object tier_json(const TierTimes& t, int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  json::object out{{"way", t.way},
                   {"what", t.what},
                   {"stored_bytes", t.stored_bytes},
                   {"kv_bytes_restored", t.kv_bytes_restored},
                   {"pack_seconds", t.pack},
                   {"store_seconds", t.store},
                   {"load_seconds", t.load},
                   {"unpack_seconds", t.unpack},
                   {"save_gb_per_s", size / (t.pack + t.store) / 1e9},
                   {"restore_gb_per_s", size / (t.load + t.unpack) / 1e9}};
  if (t.cached_share) out["cached_share"] = *t.cached_share;
  return out;
}

std::string_view code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage: return "usage";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::data: return "data";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::limit: return "limit";
    case ErrorCode::io: return "io";
    case ErrorCode::internal: return "internal";
  }
  return "unknown";
}

json::object mutation_json(const Mutation& m) {
  json::object out{{"group", m.group},
                   {"name", m.name},
                   {"at_byte", m.at_byte},
                   {"verdict", verdict_name(m.verdict)},
                   {"expected", m.expected}};
  if (m.message.empty()) return out;
  out["error_code"] = code_name(m.code);
  out["message"] = m.message;
  return out;
}

struct Gains {
  double speed_up, ttft_recompute, ttft_reload;
};
Gains gains_of(const CurvePoint& point, const CurvePoint::Reload& way) {
  return {point.recompute / way.seconds, point.recompute + point.suffix, way.seconds + point.suffix};
}

json::object point_json(const CurvePoint& point) {
  json::array reload;
  for (const CurvePoint::Reload& way : point.reload) {
    const Gains g = gains_of(point, way);
    json::object out{{"way", way.way},
                     {"seconds", way.seconds},
                     {"gb_per_s", static_cast<double>(point.state_bytes) / way.seconds / 1e9},
                     {"speed_up", g.speed_up},
                     {"ttft_seconds", g.ttft_reload},
                     {"ttft_speed_up", g.ttft_recompute / g.ttft_reload},
                     {"same_logits", way.same_logits}};
    if (way.cached_share) out["cached_share"] = *way.cached_share;
    reload.push_back(std::move(out));
  }
  return {{"length", point.length},
          {"state_bytes", point.state_bytes},
          {"recompute_seconds", point.recompute},
          {"suffix_seconds", point.suffix},
          {"fork_seconds", point.fork},
          {"ttft_recompute_seconds", point.recompute + point.suffix},
          {"break_even_gb_per_s", point.break_even_bytes_per_second() / 1e9},
          {"reload", std::move(reload)}};
}

std::string_view verdict_of(const BreakEven& b) {
  switch (b.verdict) {
    case BreakEven::Verdict::always: return "always";
    case BreakEven::Verdict::crosses: return "crosses";
    case BreakEven::Verdict::never: return "never";
  }
  fail(ErrorCode::internal, "verdict {} has no name", static_cast<int>(b.verdict));
}

json::object claim_json(const ClaimFact& fact) {
  json::object numbers;
  for (const auto& [name, value] : fact.numbers) numbers[name] = value;
  return {{"fact", std::string(1, fact.letter)},
          {"title", fact.title},
          {"lines", json::value_from(fact.lines)},
          {"numbers", std::move(numbers)}};
}

template <typename T, typename ToJson>
json::array array_of(const std::vector<T>& items, ToJson to_json) {
  json::array out;
  for (const T& item : items) out.push_back(to_json(item));
  return out;
}

}  // namespace

json::object offload_json(const OffloadReport& r, const Repro& repro) {
  json::object out = framed("lapidary.kv.offload", repro);
  out["passed"] = r.passed();
  out["prompt_tokens"] = r.prompt_tokens;
  out["suffix_tokens"] = r.suffix_tokens;
  out["repeats"] = r.repeats;
  out["kv_dtype"] = kv_types_name(r.state.types);
  out["state"] = state_json(r.state);
  out["replay"] = r.replay ? json::value(replay_json(*r.replay)) : json::value(nullptr);
  out["checks"] = checks_json(r.checks);
  out["poison"] = json::object{{"kv_bytes", r.poison.kv_bytes},
                               {"pages", r.poison.pages},
                               {"outcome", r.poison.outcome},
                               {"message", r.poison.message}};
  out["tiers"] = array_of(r.tiers, [&](const TierTimes& t) { return tier_json(t, r.state.bytes); });
  out["tokens"] = json::value_from(r.tokens);
  out["decode"] = json::object{{"uninterrupted_seconds_per_token", r.uninterrupted_seconds_per_token},
                               {"restored_seconds_per_token", r.restored_seconds_per_token}};
  const MutationCounts counts = count_mutations(r.mutations);
  out["mutation_counts"] = json::object{{"tried", counts.tried},
                                        {"caught", counts.caught},
                                        {"misnamed", counts.misnamed},
                                        {"missed", counts.missed},
                                        {"changed_nothing", counts.changed_nothing}};
  out["mutations"] = array_of(r.mutations, mutation_json);
  if (r.curve.empty()) return out;
  out["curve"] = array_of(r.curve, point_json);
  out["break_even"] = array_of(r.break_even, [](const BreakEven& b) {
    return json::object{{"way", b.way}, {"verdict", verdict_of(b)}, {"length", optional_json(b.length)}};
  });
  if (!r.claim.empty()) out["claim"] = array_of(r.claim, claim_json);
  return out;
}

json::object state_file_json(const StateFileReport& r, const Repro& repro) {
  json::object out = framed("lapidary.kv.offload.state", repro);
  out["passed"] = r.passed();
  if (!r.error.empty()) out["error"] = r.error;
  if (!r.state) return out;
  out["state"] = state_json(*r.state);
  out["attachment"] = r.attachment;
  out["checks"] = checks_json(r.checks);
  return out;
}

std::string offload_csv(const OffloadReport& r) {
  std::string out =
      "length,state_bytes,way,recompute_seconds,reload_seconds,speed_up,suffix_seconds,ttft_recompute_"
      "seconds,"
      "ttft_reload_seconds,ttft_speed_up\n";
  for (const CurvePoint& point : r.curve)
    for (const CurvePoint::Reload& way : point.reload) {
      const Gains g = gains_of(point, way);
      out += fmt::format("{},{},\"{}\",{},{},{},{},{},{},{}\n", point.length, point.state_bytes, way.way,
                         point.recompute, way.seconds, g.speed_up, point.suffix, g.ttft_recompute,
                         g.ttft_reload, g.ttft_recompute / g.ttft_reload);
    }
  return out;
}

}  // namespace lapidary::kvlab
