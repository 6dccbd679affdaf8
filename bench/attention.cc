// The attention kernel on this machine, two ladders:
//   decode   one row at depth: GB/s of keys and values, beside what the machine can read
//   prefill  a tile of queries over parts that lie in the cache: GFLOP/s, beside chains of multiply-adds
//
//   bench_attention [--smoke] [--mb N] [--threads N]
//
// Keys and values are N MB (default 256: beyond the caches of most machines).
#include <fmt/format.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/rng.h"
#include "base/team.h"
#include "kernels/kernels.h"

namespace lapidary {
namespace {

using namespace kernels;

struct Options {
  int64_t megabytes = 256;
  int threads = 1, rounds = 9;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename Run>
double fastest_seconds(int rounds, Run&& run) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < rounds; i++) {
    const double start = now();
    run();
    fastest = std::min(fastest, now() - start);
  }
  return fastest;
}

double read_bandwidth(const Options& o, Team& team) {
  const auto bytes = static_cast<size_t>(o.megabytes) << 20;
  const Buffer buffer(bytes, "benchmark");
  std::memset(buffer.data(), 1, bytes);
  const auto* words = reinterpret_cast<const uint64_t*>(buffer.data());
  std::vector<uint64_t> sums(static_cast<size_t>(o.threads) * 8);
  const double seconds = fastest_seconds(o.rounds, [&] {
    team.parallel_for(static_cast<int64_t>(bytes / 4096), 64, [&](int64_t begin, int64_t end, int thread) {
      uint64_t s[8] = {};
      for (int64_t i = begin * 512; i < end * 512; i += 8)
        for (int j = 0; j < 8; j++) s[j] += words[i + j];
      for (int j = 0; j < 8; j++) sums[static_cast<size_t>(thread) * 8] += s[j];
    });
  });
  return sums[0] == 42 ? 0 : static_cast<double>(bytes) / seconds / 1e9;
}

// GFLOP/s of independent chains of multiply-adds, one thread.
#if defined(__x86_64__)
constexpr int64_t kSteps = 4'000'000;
__attribute__((target("avx512f"))) float chains_avx512() {
  __m512 s[12];
  for (int i = 0; i < 12; i++) s[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (int64_t n = 0; n < kSteps; n++)
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) s[i] = _mm512_fmadd_ps(s[i], a, b);
  for (int i = 1; i < 12; i++) s[0] = _mm512_add_ps(s[0], s[i]);
  float out[16];
  _mm512_storeu_ps(out, s[0]);
  return out[0];
}
__attribute__((target("avx2,fma"))) float chains_avx2() {
  __m256 s[12];
  for (int i = 0; i < 12; i++) s[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (int64_t n = 0; n < kSteps; n++)
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) s[i] = _mm256_fmadd_ps(s[i], a, b);
  for (int i = 1; i < 12; i++) s[0] = _mm256_add_ps(s[0], s[i]);
  float out[8];
  _mm256_storeu_ps(out, s[0]);
  return out[0];
}
#endif

double fma_peak(const Options& o, Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::scalar) return 0;
  float kept = 0;
  const double seconds =
      fastest_seconds(o.rounds, [&] { kept += isa == Isa::avx512 ? chains_avx512() : chains_avx2(); });
  const double flops = 2.0 * 12 * static_cast<double>(kSteps) * (isa == Isa::avx512 ? 16 : 8);
  return kept == 42 ? 0 : flops / seconds / 1e9;
#else
  return 0;
#endif
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

void decode(const Kernels& k, const Options& o, Team& team, const Shape& shape, const KvTypes& types,
            double bandwidth) {
  const size_t part_bytes = kv_layout(types, shape.head_dim).head_bytes * kPartBlocks;
  const int64_t n_parts = std::max<int64_t>(1, (o.megabytes << 20) / static_cast<int64_t>(part_bytes));
  const Context context(k, shape, types, n_parts, shape.n_queries);
  const int64_t padded = context.layout.padded_dim;
  States states(n_parts * shape.n_queries, padded);
  const double seconds = fastest_seconds(o.rounds, [&] {
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

void prefill(const Kernels& k, const Options& o, Team& team, const Shape& shape, const KvTypes& types,
             double peak) {
  constexpr int64_t kQueries = 48;
  const int64_t tiles = int64_t{4} * o.threads, parts = o.rounds > 1 ? 4 : 1;
  const Context context(k, shape, types, parts, kQueries);
  const int64_t padded = context.layout.padded_dim;
  States states(tiles * kQueries, padded);
  const double seconds = fastest_seconds(o.rounds, [&] {
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

int run(const Options& o) {
  Team team(o.threads);
  const Kernels& k = kernels::kernels();
  const double bandwidth = read_bandwidth(o, team), peak = fma_peak(o, k.isa);
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
  lapidary::Options options;
  for (int i = 1; i < argc; i++) {
    const std::string flag = argv[i];
    if (flag == "--smoke") {
      options.megabytes = 4;
      options.rounds = 1;
    } else if (flag == "--mb" && i + 1 < argc) {
      options.megabytes = std::atol(argv[++i]);
    } else if (flag == "--threads" && i + 1 < argc) {
      options.threads = std::atoi(argv[++i]);
    } else {
      fmt::print(stderr, "usage: bench_attention [--smoke] [--mb N] [--threads N]\n");
      return 2;
    }
  }
  return lapidary::run(options);
}
