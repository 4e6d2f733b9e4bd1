#include "shard/kernels/tile_gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/array/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/tile_gemm.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>

#include "shard/kernels/simd/vector-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

// to [16, 16] = from [16, 16] transposed; both are rows of 32 bits, so many apart.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE void transpose_16(const uint32_t* HWY_RESTRICT from, size_t from_row, uint32_t* HWY_RESTRICT to,
                             size_t to_row) {
  __m512i a[16], b[16];
  HWY_UNROLL(16)
  for (size_t i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from + i * from_row);
  HWY_UNROLL(8)
  for (size_t i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  HWY_UNROLL(4)
  for (size_t i = 0; i < 16; i += 4) {  // a[i + c]: columns c, 4 + c, 8 + c and 12 + c of four rows
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  HWY_UNROLL(4)
  for (size_t c = 0; c < 4; ++c) {
    const __m512i left_even = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88),
                  left_odd = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd),
                  right_even = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88),
                  right_odd = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    _mm512_storeu_si512(to + c * to_row, _mm512_shuffle_i32x4(left_even, right_even, 0x88));
    _mm512_storeu_si512(to + (4 + c) * to_row, _mm512_shuffle_i32x4(left_odd, right_odd, 0x88));
    _mm512_storeu_si512(to + (8 + c) * to_row, _mm512_shuffle_i32x4(left_even, right_even, 0xdd));
    _mm512_storeu_si512(to + (12 + c) * to_row, _mm512_shuffle_i32x4(left_odd, right_odd, 0xdd));
  }
}
#else
HWY_INLINE void transpose_16(const uint32_t* HWY_RESTRICT from, size_t from_row, uint32_t* HWY_RESTRICT to,
                             size_t to_row) {
  for (size_t i = 0; i < 16; ++i)
    for (size_t j = 0; j < 16; ++j) to[j * to_row + i] = from[i * from_row + j];
}
#endif

// to [cols, rows] = from [rows, cols] transposed.
void transpose_pairs(const uint32_t* HWY_RESTRICT from, size_t from_row, size_t rows, size_t cols,
                     uint32_t* HWY_RESTRICT to, size_t to_row) {
  for (size_t i = 0; i < rows; i += 16)
    for (size_t j = 0; j < cols; j += 16) {
      if (i + 16 <= rows && j + 16 <= cols) {
        transpose_16(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
        continue;
      }
      for (size_t r = i; r < std::min(i + 16, rows); ++r)
        for (size_t c = j; c < std::min(j + 16, cols); ++c) to[c * to_row + r] = from[r * from_row + c];
    }
}

}  // namespace modelet::shard::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::shard::kernels {
namespace {

HWY_EXPORT(transpose_pairs);

constexpr size_t kTile = 16;    // rows of a tile, sums in a row, pairs in a row
constexpr size_t kBlock = 2;    // 2 x 2 tiles of sums use each loaded tile twice
constexpr size_t kDepth = 256;  // pairs along k whose tiles of B stay in L1: 32 KB
// Tiles 0 .. 3 are sums, by row and column; 4 and 5 rows of A; 6 and 7 columns of B.
constexpr int kOfA = 4, kOfB = 6;

// How many rows the tiles of a block have, and how many pairs.
struct Shape {
  std::array<size_t, kBlock> rows{};
  size_t pairs = kTile;
};

#if defined(__x86_64__)
// Assembly, because intrinsics would need a target of their own, and the compiler uses no tiles itself.
struct MachineTiles {
  void configure(const Shape& shape) {
    struct alignas(64) Configuration {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } all;
    const auto set = [&](size_t tile, size_t rows, size_t numbers) {
      all.rows[tile] = static_cast<uint8_t>(rows);
      all.row_bytes[tile] = static_cast<uint16_t>(rows > 0 ? numbers * sizeof(uint32_t) : 0);
    };
    for (size_t i = 0; i < kBlock; ++i) {
      for (size_t j = 0; j < kBlock; ++j) set(kBlock * i + j, shape.rows[i], kTile);
      set(kOfA + i, shape.rows[i], shape.pairs);
      set(kOfB + i, shape.pairs, kTile);
    }
    asm volatile("ldtilecfg %0" : : "m"(all));
  }
  // Otherwise the system would save and restore the tiles whenever it switches threads.
  void release() { asm volatile("tilerelease"); }
  template <int kNumber>
  HWY_INLINE void load(const void* from, size_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_bytes), "i"(kNumber) : "memory");
  }
  template <int kNumber>
  HWY_INLINE void store(void* to, size_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_bytes), "i"(kNumber) : "memory");
  }
  template <int kNumber>
  HWY_INLINE void clear() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kNumber));
  }
  template <int kSums, int kA, int kB>
  HWY_INLINE void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
  }
};
#endif

// The same in plain C++. Rows that a tile does not have stay untouched in memory, as the instructions leave them.
struct StandInTiles {
  struct Tile {
    size_t rows = 0, numbers = 0;
    uint32_t values[kTile][kTile] = {};
  };
  std::array<Tile, 8> tiles;

  void configure(const Shape& shape) {
    for (size_t i = 0; i < kBlock; ++i) {
      for (size_t j = 0; j < kBlock; ++j) tiles[kBlock * i + j] = {shape.rows[i], kTile};
      tiles[kOfA + i] = {shape.rows[i], shape.pairs};
      tiles[kOfB + i] = {shape.pairs, kTile};
    }
  }
  void release() {}
  template <int kNumber>
  void load(const void* from, size_t row_bytes) {
    Tile& tile = tiles[kNumber];
    for (size_t r = 0; r < tile.rows; ++r)
      std::memcpy(tile.values[r], static_cast<const char*>(from) + r * row_bytes,
                  tile.numbers * sizeof(uint32_t));
  }
  template <int kNumber>
  void store(void* to, size_t row_bytes) {
    const Tile& tile = tiles[kNumber];
    for (size_t r = 0; r < tile.rows; ++r)
      std::memcpy(static_cast<char*>(to) + r * row_bytes, tile.values[r], tile.numbers * sizeof(uint32_t));
  }
  template <int kNumber>
  void clear() {
    std::memset(tiles[kNumber].values, 0, sizeof tiles[kNumber].values);
  }
  template <int kSums, int kA, int kB>
  void multiply() {
    const auto half = [](uint32_t pair, bool upper) {
      return std::bit_cast<float>(upper ? pair & 0xffff0000u : pair << 16);
    };
    for (size_t r = 0; r < tiles[kSums].rows; ++r)
      for (size_t c = 0; c < kTile; ++c) {
        float sum = std::bit_cast<float>(tiles[kSums].values[r][c]);
        for (size_t p = 0; p < tiles[kA].numbers; ++p)
          for (const bool upper : {false, true})
            sum += half(tiles[kA].values[r][p], upper) * half(tiles[kB].values[p][c], upper);
        tiles[kSums].values[r][c] = std::bit_cast<uint32_t>(sum);
      }
  }
};

// Pairs along k of some rows of A and of all columns of B; sums of the same rows.
struct Slice {
  const Bf16* a;  // [rows, pairs]
  size_t a_row;
  const Bf16* b;  // [pairs, columns]
  size_t b_row;
  float* c;
  size_t c_row;
  size_t pairs;
};

// kRows x kColumns tiles of sums. `step`: pairs of a tile; slice.pairs is a multiple.
template <size_t kRows, size_t kColumns, class Tiles>
HWY_INLINE void block(Tiles& tiles, const Slice& s, size_t step, bool accumulate) {
  const size_t a_bytes = s.a_row * sizeof(uint32_t), b_bytes = s.b_row * sizeof(uint32_t),
               c_bytes = s.c_row * sizeof(float);
  float* const lower = s.c + kTile * s.c_row;
  if (accumulate) {
    tiles.template load<0>(s.c, c_bytes);
    if constexpr (kColumns > 1) tiles.template load<1>(s.c + kTile, c_bytes);
    if constexpr (kRows > 1) tiles.template load<2>(lower, c_bytes);
    if constexpr (kRows > 1 && kColumns > 1) tiles.template load<3>(lower + kTile, c_bytes);
  } else {
    tiles.template clear<0>();
    if constexpr (kColumns > 1) tiles.template clear<1>();
    if constexpr (kRows > 1) tiles.template clear<2>();
    if constexpr (kRows > 1 && kColumns > 1) tiles.template clear<3>();
  }
  const Bf16 *a = s.a, *b = s.b;
  for (size_t p = 0; p < s.pairs; p += step, a += 2 * step, b += 2 * step * s.b_row) {
    tiles.template load<kOfA>(a, a_bytes);
    tiles.template load<kOfB>(b, b_bytes);
    tiles.template multiply<0, kOfA, kOfB>();
    if constexpr (kColumns > 1) {
      tiles.template load<kOfB + 1>(b + 2 * kTile, b_bytes);
      tiles.template multiply<1, kOfA, kOfB + 1>();
    }
    if constexpr (kRows > 1) {
      tiles.template load<kOfA + 1>(a + 2 * kTile * s.a_row, a_bytes);
      tiles.template multiply<2, kOfA + 1, kOfB>();
    }
    if constexpr (kRows > 1 && kColumns > 1) tiles.template multiply<3, kOfA + 1, kOfB + 1>();
  }
  tiles.template store<0>(s.c, c_bytes);
  if constexpr (kColumns > 1) tiles.template store<1>(s.c + kTile, c_bytes);
  if constexpr (kRows > 1) tiles.template store<2>(lower, c_bytes);
  if constexpr (kRows > 1 && kColumns > 1) tiles.template store<3>(lower + kTile, c_bytes);
}

// Rows [first, first + rows of the shape) of C, for pairs [k, k + pairs) along k.
template <class Tiles>
void band(Tiles& tiles, const PairGemm& g, size_t first, const Shape& shape, size_t k, size_t pairs) {
  const size_t rows = shape.rows[0] + shape.rows[1];
  float* const c = g.c + first * g.c_row;
  const bool accumulate = g.accumulate || k > 0 || g.row_start != nullptr;
  if (k == 0 && g.row_start != nullptr)
    for (size_t r = 0; r < rows; ++r) std::fill_n(c + r * g.c_row, g.n, g.row_start[first + r]);
  alignas(64) uint32_t turned[kBlock * kTile * kDepth];
  Slice slice{g.a + 2 * (first * g.a_row + k), g.a_row, nullptr, g.b_row, nullptr, g.c_row, pairs};
  if (g.a_col != 1) {
    HWY_DYNAMIC_DISPATCH(transpose_pairs)
    (reinterpret_cast<const uint32_t*>(g.a + 2 * (k * g.a_col + first)), g.a_col, pairs, rows, turned,
     kDepth);
    slice.a = reinterpret_cast<const Bf16*>(turned);
    slice.a_row = kDepth;
  }
  for (size_t column = 0; column < g.n; column += kBlock * kTile) {
    slice.b = g.b + 2 * (k * g.b_row + column);
    slice.c = c + column;
    const bool two_rows = shape.rows[1] > 0, two_columns = column + kTile < g.n;
    if (two_rows && two_columns)
      block<2, 2>(tiles, slice, shape.pairs, accumulate);
    else if (two_rows)
      block<2, 1>(tiles, slice, shape.pairs, accumulate);
    else if (two_columns)
      block<1, 2>(tiles, slice, shape.pairs, accumulate);
    else
      block<1, 1>(tiles, slice, shape.pairs, accumulate);
  }
}

// Rows and pairs that do not fill tiles are computed last, with smaller tiles.
template <class Tiles>
void multiply(Tiles& tiles, const PairGemm& g) {
  if (g.k == 0 && !g.accumulate)
    for (size_t i = 0; i < g.m; ++i)
      std::fill_n(g.c + i * g.c_row, g.n, g.row_start != nullptr ? g.row_start[i] : 0.0f);
  if (g.k == 0) return;
  constexpr size_t kBand = kBlock * kTile;
  const size_t whole_rows = g.m / kBand * kBand, whole_pairs = g.k / kTile * kTile;
  const auto bands = [&](size_t begin, size_t end, Shape shape) {
    if (begin == end) return;
    const auto rows_from = [&](size_t k, size_t pairs) {
      for (size_t first = begin; first < end; first += kBand) band(tiles, g, first, shape, k, pairs);
    };
    if (whole_pairs > 0) tiles.configure(shape);
    for (size_t k = 0; k < whole_pairs; k += kDepth) rows_from(k, std::min(kDepth, whole_pairs - k));
    if (whole_pairs == g.k) return;
    shape.pairs = g.k - whole_pairs;
    tiles.configure(shape);
    rows_from(whole_pairs, shape.pairs);
  };
  bands(0, whole_rows, {{kTile, kTile}});
  const size_t rest = g.m - whole_rows;
  bands(whole_rows, g.m, {{std::min(kTile, rest), rest > kTile ? rest - kTile : 0}});
  tiles.release();
}

}  // namespace

#if defined(__x86_64__)
void gemm_on_tiles(const PairGemm& args) {
  MachineTiles tiles;
  multiply(tiles, args);
}
#else
void gemm_on_tiles(const PairGemm& args) { gemm_on_stand_in_tiles(args); }
#endif

void gemm_on_stand_in_tiles(const PairGemm& args) {
  StandInTiles tiles;
  multiply(tiles, args);
}

}  // namespace modelet::shard::kernels
#endif  // HWY_ONCE
