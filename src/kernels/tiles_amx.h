// The tile registers of AMX: eight, of up to 16 rows of 64 bytes. Included once, inside a namespace of its
// own ISA. Shapes: a tile of activations is [rows][words of four inputs]; one of weights [words][16 outputs
// of four inputs]; one of sums [rows][16] int32. The instructions are spelled as assembly because the
// compiler's macros take literal register numbers only and do not tell it that they read and write memory.

// Tiles 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights.
inline void tiles_begin(int rows, int words) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int tile = 0; tile < 8; tile++) {
    const bool weights = tile >= 6;
    config.rows[tile] = static_cast<uint8_t>(weights ? words : rows);
    config.row_bytes[tile] = static_cast<uint16_t>(tile < 4 || weights ? 64 : 4 * words);
  }
  asm volatile("ldtilecfg %0" ::"m"(config));
}
inline void tiles_end() {
  asm volatile("tilerelease");
}
template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
inline void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void tile_store(void* to) {  // rows of 64 bytes, one behind the other
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(int64_t{64}), "i"(kTile) : "memory");
}
// Sums += activations * weights, signed bytes. Exact.
template <int kSums, int kActivations, int kWeights>
inline void tile_dot() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kActivations), "i"(kWeights));
}
