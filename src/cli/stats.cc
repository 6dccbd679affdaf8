#include "cli/stats.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "cli/numbers.h"
#include "cli/table.h"
#include "spec/tensor_table.h"

namespace lapidary {
namespace {

// Of the weights that are not gathered by row: the share that a step of `rows` tokens reads (all but the
// experts that none of them chose; more than one row: as many as independent choices meet on average).
double touched_share(const ModelSpec& spec, int64_t rows) {
  double held = 0, read = 0;
  for_each_tensor(spec, [&](const TensorInfo& info) {
    if (info.gathered && !(spec.tied_head && info.slot.kind == TensorKind::token_embedding)) return;
    const auto elements = static_cast<double>(element_count(info.shape, slot_name(info.slot)));
    double share = 1;
    if (info.slot.kind == TensorKind::expert_gate_up || info.slot.kind == TensorKind::expert_down) {
      const MoeSpec& moe = *spec.layers[static_cast<size_t>(info.slot.layer)].ffn->moe;
      const double chosen = static_cast<double>(moe.top_k) / static_cast<double>(moe.n_experts);
      share = rows == 1 ? chosen : 1 - std::pow(1 - chosen, static_cast<double>(rows));
    }
    held += elements;
    read += elements * share;
  });
  return held > 0 ? read / held : 1;
}

}  // namespace

// getrusage() would count what the parent had before this program took its place.
int64_t peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::atoll(line.c_str() + 6) * 1024;  // in kB
  }
  return 0;
}

int64_t weight_bytes_per_step(const Engine& engine, int64_t rows) {
  return static_cast<int64_t>(static_cast<double>(engine.stats().weight_bytes) *
                              touched_share(engine.spec(), rows));
}

RunStats collect_stats(const Engine& engine, const LoadTimes& load, const std::string& sampling,
                       const Answer& answer) {
  RunStats stats;
  stats.load = load;
  stats.engine = engine.stats();
  stats.weight_bytes_per_token = weight_bytes_per_step(engine, 1);
  stats.peak_rss_bytes = peak_rss_bytes();
  stats.threads = engine.threads();
  stats.numeric_mode = engine.numeric_mode();
  stats.sampling = sampling;
  stats.answer = answer;
  return stats;
}

std::string stats_table(const RunStats& stats, const Style& style) {
  const Answer& answer = stats.answer;
  const int64_t prefilled = answer.prompt_tokens - answer.cache.kept;
  const double decode_rate = per_second(answer.decode_steps, answer.decode_seconds);
  TextTable time({{"time", Align::left}, {"", Align::right}, {"", Align::left}});
  time.add({"open the files", seconds_text(stats.load.open_seconds), ""});
  time.add({"tokenizer", seconds_text(stats.load.tokenizer_seconds), ""});
  time.add({"load and pack weights", seconds_text(stats.load.engine_seconds), ""});
  if (stats.load.state_seconds > 0)
    time.add({"read the saved state", seconds_text(stats.load.state_seconds),
              bytes_text(stats.engine.kv_bytes_restored) + " of keys and values"});
  std::string prefill = fmt::format("{} tokens, {} tok/s", grouped(prefilled),
                                    rate_text(per_second(prefilled, answer.prefill_seconds)));
  if (answer.cache.kept > 0)
    prefill += fmt::format(" ({} more were in the cache)", grouped(answer.cache.kept));
  time.add({"prefill, first token", seconds_text(answer.prefill_seconds), prefill});
  std::string decode = fmt::format("{} steps", grouped(answer.decode_steps));
  if (answer.decode_steps > 0) {
    const double bandwidth = decode_rate * static_cast<double>(stats.weight_bytes_per_token);
    decode += fmt::format(", {} tok/s, {}/s of weights", rate_text(decode_rate),
                          bytes_text(static_cast<int64_t>(bandwidth)));
  }
  time.add({"decode", seconds_text(answer.decode_seconds), decode});

  const EngineStats& engine = stats.engine;
  TextTable bytes({{"bytes", Align::left}, {"", Align::right}, {"", Align::left}});
  bytes.add({"weights, packed", bytes_text(engine.weight_bytes),
             fmt::format("{} read per token{}", bytes_text(stats.weight_bytes_per_token),
                         engine.weight_bytes_in_file > 0 ? ", in the mapped file" : "")});
  bytes.add({"tables, mapped", bytes_text(engine.mapped_bytes), "one row read per token"});
  bytes.add({"KV cache in use", bytes_text(engine.kv_bytes_in_use),
             fmt::format("{} reserved as address space", bytes_text(engine.kv_bytes_reserved))});
  bytes.add({"workspace", bytes_text(engine.workspace_bytes), ""});
  bytes.add({"peak resident", bytes_text(stats.peak_rss_bytes), "mapped pages of the file included"});
  const std::string use = answer.cache.cached > 0 ? "  " + cache_use_text(answer.cache) + "\n" : "";
  return time.text(style) + bytes.text(style) + style.dim(use) +
         style.dim(fmt::format("  {} threads; {}; {}", stats.threads, stats.numeric_mode, stats.sampling)) +
         "\n";
}

boost::json::object timings_json(const RunStats& stats) {
  const Answer& answer = stats.answer;
  const int64_t prefilled = answer.prompt_tokens - answer.cache.kept;
  return {{"open_s", stats.load.open_seconds},
          {"tokenizer_s", stats.load.tokenizer_seconds},
          {"load_s", stats.load.engine_seconds},
          {"state_s", stats.load.state_seconds},
          {"prefill_s", answer.prefill_seconds},
          {"prefill_tokens", prefilled},
          {"prefill_tokens_per_s", per_second(prefilled, answer.prefill_seconds)},
          {"decode_s", answer.decode_seconds},
          {"decode_steps", answer.decode_steps},
          {"decode_tokens_per_s", per_second(answer.decode_steps, answer.decode_seconds)}};
}

boost::json::object memory_json(const RunStats& stats) {
  return {{"weight_bytes", stats.engine.weight_bytes},
          {"weight_bytes_in_file", stats.engine.weight_bytes_in_file},
          {"weight_bytes_per_token", stats.weight_bytes_per_token},
          {"mapped_bytes", stats.engine.mapped_bytes},
          {"kv_bytes_in_use", stats.engine.kv_bytes_in_use},
          {"kv_bytes_reserved", stats.engine.kv_bytes_reserved},
          {"kv_bytes_restored", stats.engine.kv_bytes_restored},
          {"workspace_bytes", stats.engine.workspace_bytes},
          {"peak_rss_bytes", stats.peak_rss_bytes}};
}

}  // namespace lapidary
