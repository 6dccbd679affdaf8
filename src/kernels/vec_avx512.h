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
inline F from_i8(__m128i x) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x))};
}
inline F load_i8(const uint8_t* p) {
  return from_i8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// 16 bytes: low nibbles are the even input's codes, high nibbles the odd input's; `offset` is added to each.
inline void load_nibbles(const uint8_t* p, __m128i offset, F& even, F& odd) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), low = _mm_set1_epi8(15);
  even = from_i8(_mm_add_epi8(_mm_and_si128(x, low), offset));
  odd = from_i8(_mm_add_epi8(_mm_and_si128(_mm_srli_epi16(x, 4), low), offset));
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
