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
inline F from_i8(__m128i x) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x)))};
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
