#include "kernels/machine_probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "base/buffer.h"
#include "base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// The loops below are compiled for their CPU one by one (gnu::target), and only called after isa_available().
namespace lapidary::kernels {
namespace {

constexpr int64_t kPage = 4096;

// ---- reading: the sum of a range of pages

uint64_t sum_scalar(const std::byte* from, int64_t bytes) {
  uint64_t sums[8] = {}, words[8];
  for (int64_t i = 0; i < bytes; i += 64) {
    std::memcpy(words, from + i, sizeof words);
    for (int j = 0; j < 8; j++) sums[j] += words[j];
  }
  for (int j = 1; j < 8; j++) sums[0] += sums[j];
  return sums[0];
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] uint64_t sum_avx2(const std::byte* from, int64_t bytes) {
  __m256i sums[8] = {};
  for (int64_t i = 0; i < bytes; i += 256) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
      sums[j] = _mm256_add_epi64(
          sums[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i + int64_t{32} * j)));
  }
  for (int j = 1; j < 8; j++) sums[0] = _mm256_add_epi64(sums[0], sums[j]);
  uint64_t lanes[4];
  std::memcpy(lanes, &sums[0], sizeof lanes);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

[[gnu::target("avx512f")]] uint64_t sum_avx512(const std::byte* from, int64_t bytes) {
  __m512i sums[8] = {};
  for (int64_t i = 0; i < bytes; i += 512) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
      sums[j] = _mm512_add_epi64(sums[j], _mm512_load_si512(from + i + int64_t{64} * j));
  }
  for (int j = 1; j < 8; j++) sums[0] = _mm512_add_epi64(sums[0], sums[j]);
  uint64_t lanes[8], sum = 0;
  std::memcpy(lanes, &sums[0], sizeof lanes);
  for (const uint64_t lane : lanes) sum += lane;
  return sum;
}
#endif

// ---- arithmetic: chains of multiply-adds, enough of them side by side to fill the units. Each loop says how
// many operations one of its rounds is, and returns what it computed, so that the compiler cannot leave it
// out.

struct Loop {
  double (*run)(int64_t rounds);
  double operations;  // of one round
};

double floats_scalar(int64_t rounds) {
  float sums[16];
  for (int j = 0; j < 16; j++) sums[j] = static_cast<float>(j);
  for (int64_t i = 0; i < rounds; i++)
    for (float& sum : sums) sum = sum * 0.5f + 1.0f;
  for (int j = 1; j < 16; j++) sums[0] += sums[j];
  return static_cast<double>(sums[0]);
}

double integers_scalar(int64_t rounds) {
  uint32_t sums[16];
  for (int j = 0; j < 16; j++) sums[j] = static_cast<uint32_t>(j);
  for (int64_t i = 0; i < rounds; i++)
    for (uint32_t& sum : sums) sum += (sum & 0xff) * 3u;
  for (int j = 1; j < 16; j++) sums[0] += sums[j];
  return static_cast<double>(sums[0]);
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] double floats_avx2(int64_t rounds) {
  __m256 sums[12];
#pragma GCC unroll 12
  for (int j = 0; j < 12; j++) sums[j] = _mm256_set1_ps(static_cast<float>(j));
  const __m256 half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; j++) sums[j] = _mm256_fmadd_ps(sums[j], half, one);
  }
#pragma GCC unroll 12
  for (int j = 1; j < 12; j++) sums[0] = _mm256_add_ps(sums[0], sums[j]);
  return static_cast<double>(_mm256_cvtss_f32(sums[0]));
}

// Bytes to words to double words: three instructions for 32 products, as AVX2 has it. One factor changes from
// round to round, or the products would be computed once for all.
[[gnu::target("avx2")]] double integers_avx2(int64_t rounds) {
  __m256i sums[6] = {}, factors[6];
#pragma GCC unroll 6
  for (int j = 0; j < 6; j++) factors[j] = _mm256_set1_epi8(static_cast<char>(j + 1));
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i moving = ones;
  for (int64_t i = 0; i < rounds; i++, moving = _mm256_add_epi32(moving, ones)) {
#pragma GCC unroll 6
    for (int j = 0; j < 6; j++)
      sums[j] = _mm256_add_epi32(sums[j], _mm256_madd_epi16(_mm256_maddubs_epi16(moving, factors[j]), ones));
  }
#pragma GCC unroll 6
  for (int j = 1; j < 6; j++) sums[0] = _mm256_add_epi32(sums[0], sums[j]);
  return static_cast<double>(_mm256_extract_epi32(sums[0], 0));
}

[[gnu::target("avx2,avxvnni")]] double integers_avx2_vnni(int64_t rounds) {
  __m256i sums[12] = {};
  const __m256i threes = _mm256_set1_epi8(3);
  for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; j++) sums[j] = _mm256_dpbusd_avx_epi32(sums[j], threes, threes);
  }
#pragma GCC unroll 12
  for (int j = 1; j < 12; j++) sums[0] = _mm256_add_epi32(sums[0], sums[j]);
  return static_cast<double>(_mm256_extract_epi32(sums[0], 0));
}

[[gnu::target("avx512f")]] double floats_avx512(int64_t rounds) {
  __m512 sums[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; j++) sums[j] = _mm512_set1_ps(static_cast<float>(j));
  const __m512 half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) sums[j] = _mm512_fmadd_ps(sums[j], half, one);
  }
#pragma GCC unroll 16
  for (int j = 1; j < 16; j++) sums[0] = _mm512_add_ps(sums[0], sums[j]);
  return static_cast<double>(_mm512_cvtss_f32(sums[0]));
}

[[gnu::target("avx512f,avx512vnni")]] double integers_avx512(int64_t rounds) {
  __m512i sums[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; j++) sums[j] = _mm512_set1_epi32(j);
  const __m512i threes = _mm512_set1_epi8(3);
  for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) sums[j] = _mm512_dpbusd_epi32(sums[j], threes, threes);
  }
#pragma GCC unroll 16
  for (int j = 1; j < 16; j++) sums[0] = _mm512_add_epi32(sums[0], sums[j]);
  return static_cast<double>(_mm512_cvtsi512_si32(sums[0]));
}

namespace tiles {
#include "kernels/tiles_amx.h"
}

// Four sums of two tiles of activations and two of weights, as the kernels have them, without the loads.
double integers_amx(int64_t rounds) {
  alignas(64) int8_t threes[1024];
  alignas(64) int32_t sums[256];
  std::memset(threes, 3, sizeof threes);
  tiles::tiles_begin(16, 16);
  tiles::tile_zero<0>(), tiles::tile_zero<1>(), tiles::tile_zero<2>(), tiles::tile_zero<3>();
  tiles::tile_load<4>(threes, 64), tiles::tile_load<5>(threes, 64);
  tiles::tile_load<6>(threes, 64), tiles::tile_load<7>(threes, 64);
  for (int64_t i = 0; i < rounds / 8; i++) {
    tiles::tile_dot<0, 4, 6>(), tiles::tile_dot<1, 4, 7>();
    tiles::tile_dot<2, 5, 6>(), tiles::tile_dot<3, 5, 7>();
  }
  tiles::tile_store<0>(sums);
  tiles::tiles_end();
  return static_cast<double>(sums[0]);
}
#endif

struct Probes {
  uint64_t (*sum)(const std::byte* from, int64_t bytes);
  Loop floats, integers;
};

Probes probes(Isa isa) {
  ensure(isa_available(isa), ErrorCode::unsupported, "this CPU lacks {}", isa_name(isa));
  switch (isa) {
    case Isa::scalar: break;
#if defined(__x86_64__)
    case Isa::avx2: return {sum_avx2, {floats_avx2, 12 * 8 * 2}, {integers_avx2, 6 * 32 * 2}};
    case Isa::avx2_vnni: return {sum_avx2, {floats_avx2, 12 * 8 * 2}, {integers_avx2_vnni, 12 * 32 * 2}};
    case Isa::avx512: return {sum_avx512, {floats_avx512, 16 * 16 * 2}, {integers_avx512, 16 * 64 * 2}};
    case Isa::amx:  // an eighth of the rounds: one is sixteen times the work
      return {sum_avx512, {floats_avx512, 16 * 16 * 2}, {integers_amx, 4.0 * 16 * 16 * 64 * 2 / 8}};
#else
    default: break;
#endif
  }
  return {sum_scalar, {floats_scalar, 16 * 2}, {integers_scalar, 16 * 2}};
}

template <typename Run>
double least_seconds(int rounds, Run&& run) {
  using Clock = std::chrono::steady_clock;
  double least = 0;
  for (int i = 0; i < rounds; i++) {
    const Clock::time_point start = Clock::now();
    run();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    least = i == 0 ? seconds : std::min(least, seconds);
  }
  return std::max(least, 1e-9);
}

double operations_per_second(Team& team, const Loop& loop, int rounds) {
  constexpr int64_t kLoops = 1 << 20;  // some ten milliseconds
  const int64_t shares = team.size();
  std::atomic<double> result{0};
  const double seconds = least_seconds(rounds, [&] {
    team.parallel_for(shares, 1, [&](int64_t begin, int64_t end, int) {
      result.store(loop.run(kLoops * (end - begin)), std::memory_order_relaxed);
    });
  });
  return loop.operations * static_cast<double>(kLoops * shares) / seconds;
}

}  // namespace

ReadProbe::ReadProbe(Team& team, int64_t bytes, PageSize pages)
    : memory_(static_cast<size_t>(std::max<int64_t>(1, bytes / kPage) * kPage), "memory probe",
              pages == PageSize::small) {
  if (pages == PageSize::small)
    ::madvise(memory_.data(), memory_.size(), MADV_NOHUGEPAGE);  // fails only where there are none
  // Before it, all pages are the same page of zeros. Pieces of 2 MiB: each page is one thread's.
  team.parallel_for(size() / kPage, 512, [&](int64_t begin, int64_t end, int) {
    std::memset(memory_.data() + begin * kPage, 1, static_cast<size_t>((end - begin) * kPage));
  });
}

std::vector<double> ReadProbe::rates(Team& team, Isa isa, int64_t bytes, int rounds) const {
  constexpr int64_t kBytesOfRound = int64_t{64} << 20;
  const int64_t n_pages = std::clamp<int64_t>(bytes / kPage, 1, size() / kPage);
  const int64_t passes = std::max<int64_t>(1, kBytesOfRound / (n_pages * kPage));
  const auto sum = probes(isa).sum;
  std::atomic<uint64_t> total{0};
  const auto read = [&](int64_t begin, int64_t end) {
    return sum(memory_.data() + begin * kPage, (end - begin) * kPage);
  };
  const auto run = [&] {
    if (passes == 1) {  // small pieces: no thread waits long for another
      team.parallel_for(n_pages, 64, [&](int64_t begin, int64_t end, int) {
        total.fetch_add(read(begin, end), std::memory_order_relaxed);
      });
      return;
    }
    const int64_t shares = std::min<int64_t>(team.size(), n_pages);  // a slice for each thread's own caches
    team.parallel_for(shares, 1, [&](int64_t first, int64_t last, int) {
      uint64_t sums = 0;
      for (int64_t share = first; share < last; share++)
        for (int64_t pass = 0; pass < passes; pass++)
          sums += read(n_pages * share / shares, n_pages * (share + 1) / shares);
      total.fetch_add(sums, std::memory_order_relaxed);
    });
  };
  run();
  std::vector<double> rates;
  for (int i = 0; i < rounds; i++)
    rates.push_back(static_cast<double>(passes * n_pages * kPage) / least_seconds(1, run));
  return rates;
}

double read_bandwidth(Team& team, Isa isa, int64_t bytes, int rounds, PageSize pages) {
  const ReadProbe probe(team, bytes, pages);
  const std::vector<double> rates = probe.rates(team, isa, bytes, rounds);
  return *std::max_element(rates.begin(), rates.end());
}

Peak arithmetic_peak(Team& team, Isa isa, int rounds) {
  const Probes p = probes(isa);
  return {operations_per_second(team, p.floats, rounds), operations_per_second(team, p.integers, rounds)};
}

}  // namespace lapidary::kernels
