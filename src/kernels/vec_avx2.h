// Sixteen float lanes as two AVX2 registers. Included once, inside namespace lapidary::kernels::avx2.
struct F {
  __m256 lo, hi;
};
struct Mask {
  __m256 lo, hi;
};
constexpr int kTileRows = 6;  // 12 accumulators, two weights and a broadcast fill the 16 registers

inline F set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline F zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline F load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, F x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
inline F add(F a, F b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F sub(F a, F b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F mul(F a, F b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F div(F a, F b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline F max(F a, F b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline F min(F a, F b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline F fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

inline __m256 bf16x8(const uint16_t* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline F load_bf16(const uint16_t* p) {
  return {bf16x8(p), bf16x8(p + 8)};
}
inline F load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline F load_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline F load_u8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline F negative(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(x.lo, sign), _mm256_xor_ps(x.hi, sign)};
}
inline __m256 pow2x8(__m256 n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline F pow2(F n) {
  return {pow2x8(n.lo), pow2x8(n.hi)};
}  // n: whole numbers in [-126, 127]

inline F absolute(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi)};
}
inline F copy_sign(F magnitude, F of) {  // REQUIRES: magnitude >= 0
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(magnitude.lo, _mm256_and_ps(of.lo, sign)),
          _mm256_or_ps(magnitude.hi, _mm256_and_ps(of.hi, sign))};
}
inline Mask less(F a, F b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
inline F select(Mask m, F yes, F no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
inline Mask lanes_between(int lo, int hi) {  // lo <= lane < hi
  const __m256i a = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                b = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
  const __m256i from = _mm256_set1_epi32(lo - 1), to = _mm256_set1_epi32(hi);
  auto inside = [&](__m256i lane) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_cmpgt_epi32(lane, from), _mm256_cmpgt_epi32(to, lane)));
  };
  return {inside(a), inside(b)};
}
inline float sum_lanes(F x) {
  const __m256 a = _mm256_add_ps(x.lo, x.hi);
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
inline float max_lanes(F x) {
  const __m256 a = _mm256_max_ps(x.lo, x.hi);
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

// ---- integers: sixteen lanes of 32 bits, and 64 bytes as sixteen words of four
struct I {
  __m256i lo, hi;
};
struct C {
  __m256i lo, hi;
};
constexpr int kIntegerRows = 4;

inline I set1(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
inline I add(I a, I b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline I shift_left_7(I a) {
  return {_mm256_slli_epi32(a.lo, 7), _mm256_slli_epi32(a.hi, 7)};
}
inline F to_float(I a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
inline I to_int(F a) {  // to nearest, ties to even
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
inline C load_codes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline C low_nibbles(C c) {
  const __m256i low = _mm256_set1_epi8(15);
  return {_mm256_and_si256(c.lo, low), _mm256_and_si256(c.hi, low)};
}
inline C high_nibbles(C c) {
  return low_nibbles({_mm256_srli_epi16(c.lo, 4), _mm256_srli_epi16(c.hi, 4)});
}
// low | (high shifted to the right by kShift, or to the left where it is negative) & kBits, in every byte.
template <int kBits, int kShift>
inline C with_bits(C low, C high) {
  const auto part = [](__m256i to, __m256i bits) {
    if constexpr (kShift > 0) bits = _mm256_srli_epi16(bits, kShift);
    if constexpr (kShift < 0) bits = _mm256_slli_epi16(bits, -kShift);
    return _mm256_or_si256(to, _mm256_and_si256(bits, _mm256_set1_epi8(kBits)));
  };
  return {part(low.lo, high.lo), part(low.hi, high.hi)};
}
template <int kByte>  // byte kByte of every word, plus `zero`
inline F code_to_float(C c, int zero) {
  const auto part = [&](__m256i x) {
    const __m256i byte = _mm256_and_si256(_mm256_srli_epi32(x, 8 * kByte), _mm256_set1_epi32(255));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(byte, _mm256_set1_epi32(zero)));
  };
  return {part(c.lo), part(c.hi)};
}
// sum + four products a lane: unsigned codes times the same four signed bytes in every lane. Exact.
// dot_short: codes of up to seven bits, so that two products fit into 16 bits.
#if defined(__AVXVNNI__)
inline I dot_short(I sum, C codes, int32_t four) {
  const __m256i x = _mm256_set1_epi32(four);
  return {_mm256_dpbusd_avx_epi32(sum.lo, codes.lo, x), _mm256_dpbusd_avx_epi32(sum.hi, codes.hi, x)};
}
inline I dot_bytes(I sum, C codes, int32_t four) {
  return dot_short(sum, codes, four);
}
#else
inline I dot_short(I sum, C codes, int32_t four) {
  const __m256i x = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(_mm256_maddubs_epi16(codes.lo, x), ones)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(_mm256_maddubs_epi16(codes.hi, x), ones))};
}
inline I dot_bytes(I sum, C codes, int32_t four) {  // a byte is two nibbles
  const I high = dot_short(set1(0), high_nibbles(codes), four);
  return dot_short(add(sum, {_mm256_slli_epi32(high.lo, 4), _mm256_slli_epi32(high.hi, 4)}),
                   low_nibbles(codes), four);
}
#endif
// q = 128 * hi + lo, -64 <= lo < 64; the low bytes of the lanes.
inline I high_term(I q) {
  const I shifted = add(q, set1(64));
  return {_mm256_srai_epi32(shifted.lo, 7), _mm256_srai_epi32(shifted.hi, 7)};
}
inline I low_term(I q, I hi) {
  const I high = shift_left_7(hi);
  return {_mm256_sub_epi32(q.lo, high.lo), _mm256_sub_epi32(q.hi, high.hi)};
}
inline void store_bytes(int8_t* p, I q) {  // all lanes fit into a byte
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q.lo, q.hi), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
inline int32_t sum_lanes(I q) {
  const __m256i a = _mm256_add_epi32(q.lo, q.hi);
  __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

// ---- keys and values (attention.inc)
constexpr int kChains = 6, kLeastVectors = 1;  // an F is two registers: 6 of them are 12 chains

inline void store_f16(uint16_t* p, F x) {  // to nearest, ties to even
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.lo, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.hi, kNearest));
}
