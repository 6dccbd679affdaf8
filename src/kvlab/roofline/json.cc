#include <boost/json.hpp>

#include "kvlab/roofline/roofline.h"

namespace lapidary::kvlab {
namespace {

namespace json = boost::json;

template <typename T>
json::value or_null(const std::optional<T>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

json::object point_json(const ReadPoint& p) {
  return {{"bytes", p.bytes},
          {"median_bytes_per_s", p.median_per_second},
          {"best_bytes_per_s", p.best_per_second}};
}

json::object machine_json(const Bandwidth& b) {
  json::array caches, measures;
  for (const CacheLevel& cache : b.caches)
    caches.push_back(json::object{{"level", cache.level},
                                  {"type", cache.type},
                                  {"bytes", cache.bytes},
                                  {"instances", cache.instances}});
  for (const ReadMeasure& m : b.measures) {
    json::array sweep;
    for (const ReadPoint& p : m.sweep) sweep.push_back(point_json(p));
    measures.push_back(
        json::object{{"threads", m.threads},
                     {"memory_huge_pages", point_json(m.huge)},
                     {"memory_small_pages", point_json(m.small)},
                     {"memory_before_bytes_per_s", m.before},
                     {"memory_after_bytes_per_s", m.after > 0 ? json::value(m.after) : json::value(nullptr)},
                     {"sweep", std::move(sweep)},
                     {"cached_up_to_bytes", m.cached_up_to()},
                     {"float_ops_per_s", m.float_ops}});
  }
  return {{"caches", std::move(caches)},
          {"last_level_bytes", b.last_level},
          {"probe_bytes", b.probe_bytes},
          {"probe_note", b.note},
          {"bandwidth", std::move(measures)}};
}

json::object predicted_json(const Predicted& p) {
  return {{"weights", p.weights}, {"head", p.head}, {"kv", p.kv}, {"total", p.total()}};
}

json::object length_json(const LengthResult& r, bool fitted) {
  return {
      {"length", r.length},
      {"steps", r.steps},
      {"median_seconds", r.seconds.median},
      {"p10_seconds", r.seconds.p10},
      {"p90_seconds", r.seconds.p90},
      {"kv_bytes_total", r.kv_bytes_total},
      {"layer_kv_bytes_total", json::value_from(r.layer_kv_bytes)},
      {"kv_bytes_per_step", r.kv_bytes()},
      {"weight_bytes_per_step", r.weight_bytes()},
      {"head_bytes_per_step", r.per_step(r.head_bytes_total)},
      {"working_set_bytes", r.working_set()},
      {"in_last_level_cache", r.in_last_level},
      {"bandwidth_bytes_per_s",
       {{"working_set", r.from_working_set.bandwidth}, {"memory", r.from_memory.bandwidth}}},
      {"predicted_seconds", predicted_json(r.from_working_set)},
      {"predicted_from_memory_seconds", predicted_json(r.from_memory)},
      {"measured_seconds",
       {{"attention", r.attention_seconds}, {"head", r.head_seconds}, {"rest", r.rest_seconds()}}},
      {"reads_of_each_kv_byte", r.reads},
      {"attention_ops_per_step", r.attention_ops},
      {"attention_ops_at_peak_seconds", r.attention_ops_seconds},
      {"overhead_seconds", r.overhead_seconds()},
      {"predicted_to_measured", r.explained()},
      {"fitted_seconds", fitted ? json::value(r.fitted_seconds) : json::value(nullptr)},
      {"residual_seconds", fitted ? json::value(r.seconds.median - r.fitted_seconds) : json::value(nullptr)},
      {"logits_xxh3", hash_text(r.logits)}};
}

json::value fit_json(const std::optional<RooflineFit>& fit) {
  if (!fit) return nullptr;
  return json::object{{"intercept_seconds", fit->line.intercept},
                      {"slope_seconds_per_byte", fit->line.slope},
                      {"slope_error_seconds_per_byte", fit->line.slope_error},
                      {"effective_bytes_per_s", or_null(fit->effective_bandwidth())},
                      {"passes", or_null(fit->passes())},
                      {"passes_error", fit->passes_error()},
                      {"passes_from_memory", or_null(fit->passes_from_memory())},
                      {"r2", fit->line.r2},
                      {"weights_seconds", fit->weights_seconds},
                      {"overhead_seconds", fit->overhead_seconds()},
                      {"bandwidth_bytes_per_s", fit->bandwidth},
                      {"memory_bandwidth_bytes_per_s", fit->memory_bandwidth}};
}

json::value drift_json(const std::optional<Drift>& drift) {
  if (!drift) return nullptr;
  return json::object{{"length", drift->length},
                      {"first_seconds", drift->first_seconds},
                      {"again_seconds", drift->again_seconds},
                      {"change", drift->change()},
                      {"warning", drift->warning()},
                      {"memory_first_bytes_per_s", drift->memory_first},
                      {"memory_again_bytes_per_s", drift->memory_again},
                      {"memory_change", drift->memory_change()},
                      {"memory_warning", drift->memory_warning()}};
}

json::object verdict_json(const Verdict& v) {
  return {{"crossover_tokens", or_null(v.crossover)},
          {"crossover_bf16_tokens", or_null(v.crossover_bf16)},
          {"measured_crossover_tokens", or_null(v.measured_crossover)},
          {"bound_from_tokens", or_null(v.bound_from)},
          {"sentences", json::value_from(v.sentences)}};
}

json::object ablation_json(const AblationRun& a) {
  json::array lengths;
  for (const AblationLength& l : a.lengths) {
    const auto per_step = [&](int64_t total) {
      return static_cast<double>(total) / static_cast<double>(l.steps);
    };
    lengths.push_back(json::object{{"length", l.length},
                                   {"median_seconds", l.seconds.median},
                                   {"p10_seconds", l.seconds.p10},
                                   {"p90_seconds", l.seconds.p90},
                                   {"engine_kv_bytes_total", l.engine_kv_bytes_total},
                                   {"copied_read_bytes_total", l.copied_read_total},
                                   {"copied_written_bytes_total", l.copied_written_total},
                                   {"engine_kv_bytes_per_step", per_step(l.engine_kv_bytes_total)},
                                   {"copied_read_bytes_per_step", per_step(l.copied_read_total)},
                                   {"copied_written_bytes_per_step", per_step(l.copied_written_total)},
                                   {"logits_xxh3", hash_text(l.logits)}});
  }
  const auto of_line = [&](auto get) { return a.line ? json::value(get(*a.line)) : json::value(nullptr); };
  return {{"name", a.name},
          {"expected_passes", a.expected_passes},
          {"expected_passes_with_write_allocate", a.with_allocate},
          {"counted_passes", a.counted_passes},
          {"measured_passes", or_null(a.measured_passes)},
          {"slope_ratio", or_null(a.slope_ratio)},
          {"added_passes", or_null(a.added_passes)},
          {"logits_equal", a.logits_equal},
          {"intercept_seconds", of_line([](const Line& line) { return line.intercept; })},
          {"slope_seconds_per_byte", of_line([](const Line& line) { return line.slope; })},
          {"r2", of_line([](const Line& line) { return line.r2; })},
          {"lengths", std::move(lengths)}};
}

json::object run_json(const RooflineRun& run) {
  json::array lengths, ablations;
  for (const LengthResult& r : run.lengths) lengths.push_back(length_json(r, run.fit.has_value()));
  for (const AblationRun& a : run.ablations) ablations.push_back(ablation_json(a));
  return {{"threads", run.threads},           {"lengths", std::move(lengths)},
          {"fit", fit_json(run.fit)},         {"quiet_fit", fit_json(run.quiet_fit)},
          {"drift", drift_json(run.drift)},   {"verdict", verdict_json(run.verdict)},
          {"ablations", std::move(ablations)}};
}

}  // namespace

json::object roofline_json(const RooflineReport& report, const Repro& repro) {
  json::array left_out, runs;
  for (const LeftOut& l : report.left_out)
    left_out.push_back(json::object{{"length", l.length}, {"why", l.why}});
  for (const RooflineRun& run : report.runs) runs.push_back(run_json(run));
  const LengthResult& longest = report.runs.front().lengths.back();
  json::object out = framed("lapidary.kv.roofline", repro);
  out["model"] = {{"layers", report.n_layers},
                  {"max_position", report.max_position},
                  {"kv_dtype", kv_types_name(report.kv_types)},
                  {"weight_bytes_per_step", longest.weight_bytes()},
                  {"head_bytes_per_step", longest.per_step(longest.head_bytes_total)},
                  {"bf16_weight_bytes", report.bf16_weight_bytes},
                  {"kv_read_bytes_per_token_global", report.read_global},
                  {"kv_read_bytes_per_token_sliding", report.read_sliding}};
  out["plan"] = {{"lengths", json::value_from(report.plan.lengths)},
                 {"left_out", std::move(left_out)},
                 {"steps", report.plan.steps},
                 {"rounds", report.plan.rounds},
                 {"warm_up", report.plan.warm_up},
                 {"part_steps", report.plan.part_steps},
                 {"seed", report.plan.seed}};
  out["machine"] = machine_json(report.bandwidth);
  out["runs"] = std::move(runs);
  out["checks"] = checks_json(report.checks);
  out["passed"] = report.passed();
  return out;
}

}  // namespace lapidary::kvlab
