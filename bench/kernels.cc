// The ladder of matrix products on this machine: GB/s of weights and GOP/s, beside what it can read.
//
//   bench_kernels [--smoke] [--mb N] [--threads N]
//
// Weights are random blocks in memory of N MB (default 512: far beyond caches), packed as the engine packs
// them.
#include "kernels/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "base/team.h"
#include "kernels/machine_probe.h"
#include "ladder.h"

namespace lapidary {
namespace {

using kernels::Kernels;
using kernels::Panels;

template <typename Run>
double median_seconds(const LadderOptions& o, Run&& run) {
  const std::vector<double> seconds = seconds_of_rounds(o.rounds, run);
  return seconds[seconds.size() / 2];
}

// A panel's bytes are any bytes: only the time of the arithmetic is looked at, and scales are kept small.
struct Weight {
  Panels panels;
  Buffer memory;
};

Weight random_weight(DType dtype, int64_t inputs, int64_t bytes) {
  Weight w;
  w.panels = {kernels::panel_format(dtype), kernels::kLanes, inputs, nullptr};
  const int64_t panels = std::max<int64_t>(1, bytes / static_cast<int64_t>(w.panels.panel_bytes()));
  w.panels.n_outputs = panels * kernels::kLanes;
  w.memory = Buffer(w.panels.bytes() + 4096, "benchmark");
  auto* words = reinterpret_cast<uint32_t*>(w.memory.data());
  for (size_t i = 0; i < w.panels.bytes() / 4; i++)
    words[i] = static_cast<uint32_t>(i * 2654435761u) & 0x2fff2fffu;
  w.panels.data = w.memory.data();
  return w;
}

void measure(const Kernels& k, const LadderOptions& o, Team& team, DType dtype, int64_t m, int terms,
             double bandwidth) {
  constexpr int64_t kInputs = 1536;
  const Weight w = random_weight(dtype, kInputs, (o.megabytes << 20) / (m > 8 ? 8 : 1));
  std::vector<float> x(static_cast<size_t>(m * kInputs)), y(static_cast<size_t>(m * w.panels.n_outputs));
  for (size_t i = 0; i < x.size(); i++) x[i] = uniform(1, 2, i) - 0.5f;
  const auto padded = static_cast<size_t>(kernels::padded_rows(m) * kInputs);
  std::vector<int8_t> hi(padded), lo(padded);
  std::vector<float> scales(padded / kernels::kQuantGroup + kernels::kMaxTileHeight);
  std::vector<int32_t> sums(padded / kernels::kSumGroup + kernels::kMaxTileHeight);
  const kernels::QuantisedRows rows{hi.data(), terms == 2 ? lo.data() : nullptr, scales.data(), sums.data(),
                                    kInputs,   kernels::tile_height(m)};
  for (int64_t r = 0; r < m; r++) k.quantise(x.data() + r * kInputs, kInputs, rows, r);
  const double seconds = median_seconds(o, [&] {
    team.parallel_for(w.panels.n_panels(), 1, [&](int64_t begin, int64_t end, int) {
      if (terms == 0) k.matmul(w.panels, begin, end, x.data(), kInputs, m, y.data(), w.panels.n_outputs);
      else k.matmul_quantised(w.panels, begin, end, rows, m, y.data(), w.panels.n_outputs);
    });
  });
  const double gb = static_cast<double>(w.panels.bytes()) / 1e9,
               ops = 2.0 * static_cast<double>(w.panels.n_outputs * kInputs * m) / 1e9;
  fmt::print("{:<7} {:<5} {:<4} M {:>3}  {:>6.1f} GB/s ({:>3.0f} % of what is read)  {:>7.1f} GOP/s\n",
             k.name, dtype_name(dtype),
             terms == 0   ? "f32"
             : terms == 1 ? "a8"
                          : "a16",
             m, gb / seconds, 100 * gb / seconds / bandwidth, ops / seconds);
}

int run(const LadderOptions& o) {
  Team team(o.threads);
  const Kernels& k = kernels::kernels();
  const double bandwidth =
      kernels::read_bandwidth(team, k.isa, o.megabytes << 20, o.rounds, kernels::PageSize::huge) / 1e9;
  const kernels::Peak peak = kernels::arithmetic_peak(team, k.isa, o.rounds);
  fmt::print(
      "{} threads, {} MB, read bandwidth {:.1f} GB/s, peaks {:.0f} Gop/s (float32), {:.0f} Gop/s (int8)\n",
      o.threads, o.megabytes, bandwidth, peak.float_ops / 1e9, peak.integer_ops / 1e9);
  for (const DType dtype : {DType::q4_0, DType::q8_0, DType::q4_k, DType::q6_k, DType::bf16}) {
    for (const int64_t m : {1, 4, 8, 64}) {
      for (const int terms : {0, 1, 2}) {
        if (terms > 0 && !is_quantised(dtype)) continue;
        measure(k, o, team, dtype, m, terms, bandwidth);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace lapidary

int main(int argc, char** argv) {
  lapidary::LadderOptions options{.megabytes = 512, .rounds = 5};
  if (!lapidary::read_ladder_flags(argc, argv, "bench_kernels", options)) return 2;
  return lapidary::run(options);
}
