// Sixteen float lanes as one AVX-512 register. Included once, inside namespace lapidary::kernels::avx512.
struct F {
  __m512 v;
};
struct Mask {
  __mmask16 m;
};
constexpr int kTileRows = 12;

inline F set1(float x) {
  return {_mm512_set1_ps(x)};
}
inline F zero() {
  return {_mm512_setzero_ps()};
}
inline F load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void store(float* p, F x) {
  _mm512_storeu_ps(p, x.v);
}
inline F add(F a, F b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline F sub(F a, F b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline F mul(F a, F b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline F div(F a, F b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline F max(F a, F b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline F min(F a, F b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline F fma(F a, F b, F c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}

inline F load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
}
inline F load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline F load_u8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline F negative(F x) {
  return {_mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(INT32_MIN)))};
}
inline F pow2(F n) {  // n: whole numbers in [-126, 127]
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvttps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
inline F absolute(F x) {
  return {_mm512_abs_ps(x.v)};
}
inline F copy_sign(F magnitude, F of) {  // REQUIRES: magnitude >= 0
  return {_mm512_or_ps(magnitude.v, _mm512_and_ps(of.v, _mm512_set1_ps(-0.0f)))};
}
inline Mask less(F a, F b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
inline F select(Mask m, F yes, F no) {
  return {_mm512_mask_blend_ps(m.m, no.v, yes.v)};
}
inline Mask lanes_between(int lo, int hi) {  // lo <= lane < hi
  const unsigned below = hi >= 16  ? 0xffffu
                         : hi <= 0 ? 0u
                                   : (1u << hi) - 1,
                 under = lo >= 16  ? 0xffffu
                         : lo <= 0 ? 0u
                                   : (1u << lo) - 1;
  return {static_cast<__mmask16>(below & ~under)};
}
inline float sum_lanes(F x) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
inline float max_lanes(F x) {
  const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

// ---- integers: sixteen lanes of 32 bits, and 64 bytes as sixteen words of four
struct I {
  __m512i v;
};
struct C {
  __m512i v;
};
constexpr int kIntegerRows = 8;  // eight words of codes, eight sums, and room for what moves

inline I set1(int32_t x) {
  return {_mm512_set1_epi32(x)};
}
inline I add(I a, I b) {
  return {_mm512_add_epi32(a.v, b.v)};
}
inline I shift_left_7(I a) {
  return {_mm512_slli_epi32(a.v, 7)};
}
inline F to_float(I a) {
  return {_mm512_cvtepi32_ps(a.v)};
}
inline I to_int(F a) {  // to nearest, ties to even
  return {_mm512_cvtps_epi32(a.v)};
}
inline C load_codes(const uint8_t* p) {
  return {_mm512_loadu_si512(p)};
}
inline void store_codes(int8_t* p, C c) {
  _mm512_storeu_si512(p, c.v);
}
inline I load_ints(const int32_t* p) {
  return {_mm512_loadu_si512(p)};
}
inline C add_bytes(C c, int x) {  // modulo 256
  return {_mm512_add_epi8(c.v, _mm512_set1_epi8(static_cast<char>(x)))};
}
inline C low_nibbles(C c) {
  return {_mm512_and_si512(c.v, _mm512_set1_epi8(15))};
}
inline C high_nibbles(C c) {
  return {_mm512_and_si512(_mm512_srli_epi16(c.v, 4), _mm512_set1_epi8(15))};
}
// low | (high shifted to the right by kShift, or to the left where it is negative) & kBits, in every byte.
template <int kBits, int kShift>
inline C with_bits(C low, C high) {
  __m512i bits = high.v;
  if constexpr (kShift > 0) bits = _mm512_srli_epi16(bits, kShift);
  if constexpr (kShift < 0) bits = _mm512_slli_epi16(bits, -kShift);
  return {_mm512_or_si512(low.v, _mm512_and_si512(bits, _mm512_set1_epi8(kBits)))};
}
template <int kByte>  // byte kByte of every word, plus `zero`
inline F code_to_float(C c, int zero) {
  const __m512i x = _mm512_and_si512(_mm512_srli_epi32(c.v, 8 * kByte), _mm512_set1_epi32(255));
  return {_mm512_cvtepi32_ps(_mm512_add_epi32(x, _mm512_set1_epi32(zero)))};
}
// sum + four products a lane: unsigned codes times the same four signed bytes in every lane. Exact.
// dot_short: codes of up to seven bits.
inline I dot_short(I sum, C codes, int32_t four) {
  return {_mm512_dpbusd_epi32(sum.v, codes.v, _mm512_set1_epi32(four))};
}
inline I dot_bytes(I sum, C codes, int32_t four) {
  return dot_short(sum, codes, four);
}
// q = 128 * hi + lo, -64 <= lo < 64; the low bytes of the lanes.
inline I high_term(I q) {
  return {_mm512_srai_epi32(_mm512_add_epi32(q.v, _mm512_set1_epi32(64)), 7)};
}
inline I low_term(I q, I hi) {
  return {_mm512_sub_epi32(q.v, _mm512_slli_epi32(hi.v, 7))};
}
inline void store_bytes(int8_t* p, I q) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(q.v));
}
inline int32_t sum_lanes(I q) {
  const __m256i a = _mm256_add_epi32(_mm512_castsi512_si256(q.v), _mm512_extracti64x4_epi64(q.v, 1));
  __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

// ---- keys and values (attention.inc)
constexpr int kChains = 16, kLeastVectors = 2;  // 12 rows of 2 vectors: 24 sums, 2 weights, a broadcast

inline void store_f16(uint16_t* p, F x) {  // to nearest, ties to even
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
