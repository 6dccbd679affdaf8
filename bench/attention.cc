// The attention kernel on this machine, two ladders:
//   decode   one row at depth: GB/s of keys and values, beside what the machine can read
//   prefill  a tile of queries over parts that lie in the cache: GFLOP/s, beside chains of multiply-adds
//
//   bench_attention [--smoke] [--mb N] [--threads N]
//
// Keys and values are N MB (default 256: beyond the caches of most machines).
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/rng.h"
#include "base/team.h"
#include "kernels/kernels.h"
#include "kernels/machine_probe.h"
#include "ladder.h"

namespace lapidary {
namespace {

using namespace kernels;

template <typename Run>
double fastest_seconds(const LadderOptions& o, Run&& run) {
  const std::vector<double> seconds = seconds_of_rounds(o.rounds, run);
  return seconds.front();
}

struct Shape {
  const char* name;
  int64_t n_queries, n_kv_heads, head_dim;
};

// Parts of keys and values, filled by the kernel's own rounding, and queries.
struct Context {
  KvLayout layout;
  Buffer memory;
  std::vector<const std::byte*> blocks;
  std::vector<float> q;
  std::vector<Seen> seen;

  Context(const Kernels& k, const Shape& shape, const KvTypes& types, int64_t n_parts, int64_t n_queries)
      : layout(kv_layout(types, shape.head_dim)),
        memory(layout.head_bytes * static_cast<size_t>(n_parts * kPartBlocks), "benchmark"),
        q(static_cast<size_t>(n_queries * shape.head_dim)),
        seen(static_cast<size_t>(n_queries), Seen{0, static_cast<int>(kPartPositions)}) {
    for (size_t i = 0; i < q.size(); i++) q[i] = uniform(1, 2, i) - 0.5f;
    std::vector<float> row(static_cast<size_t>(kBlock * layout.padded_dim));
    for (int64_t b = 0; b < n_parts * kPartBlocks; b++) {
      std::byte* head = memory.data() + static_cast<size_t>(b) * layout.head_bytes;
      for (size_t i = 0; i < row.size(); i++) row[i] = uniform(3, 4, i) - 0.5f;
      float scale = 1;
      const auto n = static_cast<int64_t>(row.size());
      k.encode_kv(types.values, row.data(), n, head + layout.values_at, &scale);
      k.encode_kv(types.keys, row.data(), kBlock * layout.head_dim, head, &scale);
      for (const size_t at : {layout.key_scales_at, layout.value_scales_at}) {
        const bool stored = at == layout.key_scales_at ? types.keys == DType::i8 : types.values == DType::i8;
        for (int64_t j = 0; stored && j < kBlock; j++) std::memcpy(head + at + 4 * j, &scale, sizeof scale);
      }
      blocks.push_back(head);
    }
  }
  AttentionPart part(int64_t index, int64_t first, int64_t n) const {
    return {layout,
            blocks.data() + index * kPartBlocks,
            q.data() + first * layout.head_dim,
            layout.head_dim,
            n,
            seen.data() + first};
  }
};

struct States {
  std::vector<float> max, sum, values;
  States(int64_t n, int64_t padded)
      : max(static_cast<size_t>(n)), sum(max.size()), values(static_cast<size_t>(n * padded)) {}
  AttentionState at(int64_t i, int64_t padded) {
    return {max.data() + i, sum.data() + i, values.data() + i * padded};
  }
};

void decode(const Kernels& k, const LadderOptions& o, Team& team, const Shape& shape, const KvTypes& types,
            double bandwidth) {
  const size_t part_bytes = kv_layout(types, shape.head_dim).head_bytes * kPartBlocks;
  const int64_t n_parts = std::max<int64_t>(1, (o.megabytes << 20) / static_cast<int64_t>(part_bytes));
  const Context context(k, shape, types, n_parts, shape.n_queries);
  const int64_t padded = context.layout.padded_dim;
  States states(n_parts * shape.n_queries, padded);
  const double seconds = fastest_seconds(o, [&] {
    team.parallel_for(n_parts, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++)
        k.attend(context.part(i, 0, shape.n_queries), states.at(i * shape.n_queries, padded));
    });
  });
  const double gb = static_cast<double>(context.memory.size()) / 1e9;
  fmt::print(
      "decode   {:<7} {:<12} {:<5} {:>2} queries of {:>3}  {:>6.1f} GB/s ({:>3.0f} % of what is read)\n",
      k.name, shape.name, kv_types_name(types), shape.n_queries, shape.head_dim, gb / seconds,
      100 * gb / seconds / bandwidth);
}

void prefill(const Kernels& k, const LadderOptions& o, Team& team, const Shape& shape, const KvTypes& types,
             double peak) {
  constexpr int64_t kQueries = 48;
  const int64_t tiles = int64_t{4} * o.threads, parts = o.rounds > 1 ? 4 : 1;
  const Context context(k, shape, types, parts, kQueries);
  const int64_t padded = context.layout.padded_dim;
  States states(tiles * kQueries, padded);
  const double seconds = fastest_seconds(o, [&] {
    team.parallel_for(tiles, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < parts; i++)
          k.attend(context.part(i, 0, kQueries), states.at(t * kQueries, padded));
    });
  });
  const double flops = 4.0 * static_cast<double>(tiles * parts * kQueries * kPartPositions * shape.head_dim);
  fmt::print("prefill  {:<7} {:<12} {:<5} {:>2} queries of {:>3}  {:>6.1f} GFLOP/s ({:>3.0f} % of chains)\n",
             k.name, shape.name, kv_types_name(types), kQueries, shape.head_dim, flops / seconds / 1e9,
             100 * flops / seconds / 1e9 / (peak * o.threads));
}

int run(const LadderOptions& o) {
  Team team(o.threads);
  const Kernels& k = kernels::kernels();
  const double bandwidth =
      kernels::read_bandwidth(team, k.isa, o.megabytes << 20, o.rounds, kernels::PageSize::huge) / 1e9;
  Team alone(1);
  const double peak = kernels::arithmetic_peak(alone, k.isa, o.rounds).float_ops / 1e9;
  fmt::print("{} threads, {} MB, read bandwidth {:.1f} GB/s, chains {:.1f} GFLOP/s a thread\n", o.threads,
             o.megabytes, bandwidth, peak);
  constexpr Shape kShapes[] = {{"SmolLM2", 3, 3, 64}, {"Gemma 3 270M", 4, 1, 256}, {"E2B global", 8, 1, 512}};
  for (const Shape& shape : kShapes) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::i8})
      decode(k, o, team, shape, type, bandwidth);
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::i8})
      prefill(k, o, team, shape, type, peak);
  }
  return 0;
}

}  // namespace
}  // namespace lapidary

int main(int argc, char** argv) {
  lapidary::LadderOptions options{.megabytes = 256, .rounds = 9};
  if (!lapidary::read_ladder_flags(argc, argv, "bench_attention", options)) return 2;
  return lapidary::run(options);
}
