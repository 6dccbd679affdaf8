// The AVX-512 instructions that vec_avx512.h uses, as loops over 16 lanes: each does what the instruction set
// reference says. With it the AVX-512 text of the kernels runs, and is held to the scalar bits, on machines
// that lack AVX-512. Include after <immintrin.h>.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

struct Floats {
  float v[16];
};
struct Ints {
  int32_t v[16];
};
using Mask16 = uint16_t;

template <typename To, typename Fn>
inline To each(Fn fn) {
  To out;
  for (int i = 0; i < 16; i++) out.v[i] = fn(i);
  return out;
}
template <typename To, typename From>
inline To bits(const From& from) {
  To out;
  std::memcpy(&out, &from, sizeof out);
  return out;
}

inline Floats set1_ps(float x) {
  return each<Floats>([&](int) { return x; });
}
inline Floats setzero_ps() {
  return set1_ps(0);
}
inline Floats loadu_ps(const float* p) {
  return each<Floats>([&](int i) { return p[i]; });
}
inline void storeu_ps(float* p, Floats x) {
  std::memcpy(p, x.v, sizeof x.v);
}
inline Floats add_ps(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Floats sub_ps(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Floats mul_ps(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] * b.v[i]; });
}
inline Floats div_ps(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] / b.v[i]; });
}
inline Floats max_ps(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats min_ps(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats fmadd_ps(Floats a, Floats b, Floats c) {
  return each<Floats>([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline Floats abs_ps(Floats a) {
  return each<Floats>([&](int i) { return std::fabs(a.v[i]); });
}
inline Floats or_ps(Floats a, Floats b) {
  const Ints x = bits<Ints>(a), y = bits<Ints>(b);
  return bits<Floats>(each<Ints>([&](int i) { return x.v[i] | y.v[i]; }));
}
inline Floats and_ps(Floats a, Floats b) {
  const Ints x = bits<Ints>(a), y = bits<Ints>(b);
  return bits<Floats>(each<Ints>([&](int i) { return x.v[i] & y.v[i]; }));
}
inline Floats castsi512_ps(Ints a) {
  return bits<Floats>(a);
}
inline Ints slli_epi32(Ints a, unsigned n) {
  return each<Ints>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << n); });
}
inline Ints add_epi32(Ints a, Ints b) {
  return each<Ints>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Ints set1_epi32(int32_t x) {
  return each<Ints>([&](int) { return x; });
}
inline Ints cvttps_epi32(Floats a) {
  return each<Ints>([&](int i) { return static_cast<int32_t>(a.v[i]); });
}
inline Floats cvtepi32_ps(Ints a) {
  return each<Floats>([&](int i) { return static_cast<float>(a.v[i]); });
}
inline Ints cvtepu16_epi32(__m256i a) {
  uint16_t x[16];
  std::memcpy(x, &a, sizeof x);
  return each<Ints>([&](int i) { return static_cast<int32_t>(x[i]); });
}
inline Floats cvtph_ps(__m256i a) {
  uint16_t x[16];
  std::memcpy(x, &a, sizeof x);
  return each<Floats>([&](int i) { return _cvtsh_ss(x[i]); });
}
inline Ints cvtepi8_epi32(__m128i a) {
  int8_t x[16];
  std::memcpy(x, &a, sizeof x);
  return each<Ints>([&](int i) { return static_cast<int32_t>(x[i]); });
}
inline __m256i cvtps_ph(Floats a, int) {  // to nearest, ties to even: the only one used
  uint16_t x[16];
  for (int i = 0; i < 16; i++) x[i] = _cvtss_sh(a.v[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256i out;
  std::memcpy(&out, x, sizeof out);
  return out;
}
inline Mask16 cmp_ps_mask(Floats a, Floats b, int) {  // _CMP_LT_OQ, the only one used
  unsigned m = 0;
  for (int i = 0; i < 16; i++) m |= static_cast<unsigned>(a.v[i] < b.v[i]) << i;
  return static_cast<Mask16>(m);
}
inline Floats mask_blend_ps(Mask16 m, Floats no, Floats yes) {
  return each<Floats>([&](int i) { return m >> i & 1 ? yes.v[i] : no.v[i]; });
}
inline __m256 castps512_ps256(Floats a) {
  return _mm256_loadu_ps(a.v);
}
inline __m256 extractf32x8_ps(Floats a, int half) {
  return _mm256_loadu_ps(a.v + 8 * half);
}
inline Ints loadu_si512(const void* p) {
  Ints out;
  std::memcpy(&out, p, sizeof out);
  return out;
}
inline Ints and_si512(Ints a, Ints b) {
  return each<Ints>([&](int i) { return a.v[i] & b.v[i]; });
}
inline Ints or_si512(Ints a, Ints b) {
  return each<Ints>([&](int i) { return a.v[i] | b.v[i]; });
}
inline Ints xor_si512(Ints a, Ints b) {
  return each<Ints>([&](int i) { return a.v[i] ^ b.v[i]; });
}
inline Ints castps_si512(Floats a) {
  return bits<Ints>(a);
}
inline void storeu_si512(void* p, Ints a) {
  std::memcpy(p, a.v, sizeof a.v);
}
inline Ints add_epi8(Ints a, Ints b) {
  uint8_t x[64], y[64];
  std::memcpy(x, a.v, 64);
  std::memcpy(y, b.v, 64);
  for (int i = 0; i < 64; i++) x[i] = static_cast<uint8_t>(x[i] + y[i]);
  std::memcpy(a.v, x, 64);
  return a;
}
inline Ints slli_epi16(Ints a, unsigned n) {
  uint16_t x[32];
  std::memcpy(x, a.v, 64);
  for (uint16_t& v : x) v = static_cast<uint16_t>(v << n);
  std::memcpy(a.v, x, 64);
  return a;
}
inline Ints cvtepu8_epi32(__m128i a) {
  uint8_t x[16];
  std::memcpy(x, &a, 16);
  return each<Ints>([&](int i) { return x[i]; });
}
inline Ints sub_epi32(Ints a, Ints b) {
  return each<Ints>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Ints srli_epi32(Ints a, unsigned n) {
  return each<Ints>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> n); });
}
inline Ints srai_epi32(Ints a, unsigned n) {
  return each<Ints>([&](int i) { return a.v[i] >> n; });
}
inline Ints srli_epi16(Ints a, unsigned n) {
  return each<Ints>([&](int i) {
    const auto x = static_cast<uint32_t>(a.v[i]);
    return static_cast<int32_t>((x & 0xffff) >> n | x >> (16 + n) << 16);
  });
}
inline Ints set1_epi8(int8_t x) {
  return set1_epi32(static_cast<int32_t>(0x01010101u * static_cast<uint8_t>(x)));
}
inline Ints dpbusd_epi32(Ints sum, Ints codes, Ints x) {
  return each<Ints>([&](int i) {
    int32_t out = sum.v[i];
    for (int byte = 0; byte < 4; byte++) {
      const auto code = static_cast<uint8_t>(static_cast<uint32_t>(codes.v[i]) >> 8 * byte);
      const auto factor = static_cast<int8_t>(static_cast<uint32_t>(x.v[i]) >> 8 * byte);
      out += code * factor;
    }
    return out;
  });
}
inline Ints cvtps_epi32(Floats a) {
  return each<Ints>([&](int i) { return static_cast<int32_t>(std::nearbyint(a.v[i])); });
}
inline __m128i cvtepi32_epi8(Ints a) {
  int8_t x[16];
  for (int i = 0; i < 16; i++) x[i] = static_cast<int8_t>(a.v[i]);
  __m128i out;
  std::memcpy(&out, x, sizeof out);
  return out;
}
inline __m256i castsi512_si256(Ints a) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a.v));
}
inline __m256i extracti64x4_epi64(Ints a, int half) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a.v + 8 * half));
}

}  // namespace emulated

#define __m512 ::emulated::Floats
#define __mmask16 ::emulated::Mask16
#define _mm512_set1_ps ::emulated::set1_ps
#define _mm512_setzero_ps ::emulated::setzero_ps
#define _mm512_loadu_ps ::emulated::loadu_ps
#define _mm512_storeu_ps ::emulated::storeu_ps
#define _mm512_add_ps ::emulated::add_ps
#define _mm512_sub_ps ::emulated::sub_ps
#define _mm512_mul_ps ::emulated::mul_ps
#define _mm512_div_ps ::emulated::div_ps
#define _mm512_max_ps ::emulated::max_ps
#define _mm512_min_ps ::emulated::min_ps
#define _mm512_fmadd_ps ::emulated::fmadd_ps
#define _mm512_abs_ps ::emulated::abs_ps
#define _mm512_or_ps ::emulated::or_ps
#define _mm512_and_ps ::emulated::and_ps
#define _mm512_castsi512_ps ::emulated::castsi512_ps
#define _mm512_slli_epi32 ::emulated::slli_epi32
#define _mm512_add_epi32 ::emulated::add_epi32
#define _mm512_set1_epi32 ::emulated::set1_epi32
#define _mm512_cvttps_epi32 ::emulated::cvttps_epi32
#define _mm512_cvtepi32_ps ::emulated::cvtepi32_ps
#define _mm512_cvtepu16_epi32 ::emulated::cvtepu16_epi32
#define _mm512_cvtph_ps ::emulated::cvtph_ps
#define _mm512_cvtps_ph ::emulated::cvtps_ph
#define _mm512_cvtepi8_epi32 ::emulated::cvtepi8_epi32
#define _mm512_cmp_ps_mask ::emulated::cmp_ps_mask
#define _mm512_mask_blend_ps ::emulated::mask_blend_ps
#define _mm512_castps512_ps256 ::emulated::castps512_ps256
#define _mm512_extractf32x8_ps ::emulated::extractf32x8_ps
#define __m512i ::emulated::Ints
#define _mm512_loadu_si512 ::emulated::loadu_si512
#define _mm512_and_si512 ::emulated::and_si512
#define _mm512_or_si512 ::emulated::or_si512
#define _mm512_xor_si512 ::emulated::xor_si512
#define _mm512_castps_si512 ::emulated::castps_si512
#define _mm512_storeu_si512 ::emulated::storeu_si512
#define _mm512_add_epi8 ::emulated::add_epi8
#define _mm512_slli_epi16 ::emulated::slli_epi16
#define _mm512_cvtepu8_epi32 ::emulated::cvtepu8_epi32
#define _mm512_sub_epi32 ::emulated::sub_epi32
#define _mm512_srli_epi32 ::emulated::srli_epi32
#define _mm512_srai_epi32 ::emulated::srai_epi32
#define _mm512_srli_epi16 ::emulated::srli_epi16
#define _mm512_set1_epi8 ::emulated::set1_epi8
#define _mm512_dpbusd_epi32 ::emulated::dpbusd_epi32
#define _mm512_cvtps_epi32 ::emulated::cvtps_epi32
#define _mm512_cvtepi32_epi8 ::emulated::cvtepi32_epi8
#define _mm512_castsi512_si256 ::emulated::castsi512_si256
#define _mm512_extracti64x4_epi64 ::emulated::extracti64x4_epi64
