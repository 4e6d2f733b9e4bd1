// Dense products of fp32 and of bf16 operands on one register tile.
#include "shard/kernels/gemm.h"

#include <algorithm>
#include <cstring>

#include "base/array/prefetch.h"
#include "base/array/simd_targets.h"
#include "shard/kernels/simd/instruction_set.h"
#include "shard/kernels/tile_gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/gemm.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>

#include "shard/kernels/simd/vector-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

// The callers' layouts suit the micro-kernel: rows of B are contiguous, and A is read as scalars. Registers:
// Operand::kTileRows x kTileVectors accumulators, kTileVectors of B, one broadcast of A.
constexpr size_t kTileVectors = kLanes == 8 ? 2 : 4;  // AVX2 has 16 registers, AVX-512 and NEON 32
constexpr size_t kDepth = 128;        // k block: kDepth x kTileVectors vectors of B stay in L1
constexpr size_t kPackedDepth = 256;  // if B is packed and A is not transposed (else A needs as much of L1)

// Rows of B often lie a power of two apart, and then they compete for a few places of L1. Where vectors are
// narrower than a cache line, a panel of B is therefore copied into one piece (packed) first, if C has enough
// rows to pay for the copy. Fewer rows pay if rows of B are kFar elements apart or more, because then they
// have hardly any places. With AVX-512, panels fill L1 well without packing.
constexpr bool kMayPack = kLanes <= 8;
constexpr size_t kRowsToPack = 72, kRowsToPackFar = 48, kFar = 256;  // kFar: elements between rows

// How a step along k multiplies: acc [rows, vectors] += column of A * row of B.
struct Floats {
  using Element = float;
  static constexpr size_t kWidth = 1;  // elements that make up one position along k
  static constexpr size_t kTileRows = 6;
  static constexpr bool kPacks = kMayPack;

  template <size_t kRows, size_t kVectors>
  static HWY_INLINE void step(const float* HWY_RESTRICT a, size_t a_row, const float* HWY_RESTRICT b,
                              V (&acc)[kRows][kVectors]) {
    V row[kVectors];
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j) row[j] = hn::LoadU(d, b + j * kLanes);
    HWY_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) {
      const V value = hn::Set(d, a[i * a_row]);
      HWY_UNROLL(4)
      for (size_t j = 0; j < kVectors; ++j) acc[i][j] = hn::MulAdd(value, row[j], acc[i][j]);
    }
  }
};

constexpr Bits<D> u32;

// Pairs of bf16 as 32-bit lanes.
HWY_INLINE hn::Vec<Bits<D>> broadcast_pair(const Bf16* from) {
  uint32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return hn::Set(u32, pair);
}
#if HWY_TARGET == HWY_SCALAR  // a lane of 32 bits cannot be taken for two of 16
HWY_INLINE hn::Vec<Bits<D>> load_pairs(const Bf16* from) { return broadcast_pair(from); }
HWY_INLINE void store_pairs(hn::Vec<Bits<D>> pairs, Bf16* to) {
  const uint32_t pair = hn::GetLane(pairs);
  std::memcpy(static_cast<void*>(to), &pair, sizeof(pair));
}
#else
constexpr hn::Repartition<uint16_t, D> u16;
HWY_INLINE hn::Vec<Bits<D>> load_pairs(const Bf16* from) {
  return hn::BitCast(u32, hn::LoadU(u16, &from->bits));
}
HWY_INLINE void store_pairs(hn::Vec<Bits<D>> pairs, Bf16* to) {
  hn::StoreU(hn::BitCast(u16, pairs), u16, &to->bits);
}
#endif

// For machines without bf16 instructions, or on which those are slower. A shift or a mask makes a float of
// either half of a pair. One half is multiplied after the other, so that the registers suffice.
struct SplitPairs {
  using Element = Bf16;
  static constexpr size_t kWidth = 2;
  static constexpr size_t kTileRows = kLanes == 8 ? 4 : 6;  // AVX2 needs registers for the halves
  static constexpr bool kPacks = false;

  template <class Half, size_t kRows, size_t kVectors>
  static HWY_INLINE void half_step(const Half& half, const Bf16* HWY_RESTRICT a, size_t a_row,
                                   const Bf16* HWY_RESTRICT b, V (&acc)[kRows][kVectors]) {
    V row[kVectors];
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j) row[j] = half(load_pairs(b + kWidth * j * kLanes));
    HWY_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) {
      const V value = half(broadcast_pair(a + kWidth * i * a_row));
      HWY_UNROLL(4)
      for (size_t j = 0; j < kVectors; ++j) acc[i][j] = hn::MulAdd(value, row[j], acc[i][j]);
    }
  }
  template <size_t kRows, size_t kVectors>
  static HWY_INLINE void step(const Bf16* HWY_RESTRICT a, size_t a_row, const Bf16* HWY_RESTRICT b,
                              V (&acc)[kRows][kVectors]) {
    const auto lower = [](hn::Vec<Bits<D>> pairs)
                           HWY_ATTR { return hn::BitCast(d, hn::ShiftLeft<16>(pairs)); };
    const auto upper = [](hn::Vec<Bits<D>> pairs)
                           HWY_ATTR { return hn::BitCast(d, hn::And(pairs, hn::Set(u32, 0xffff0000u))); };
    half_step(lower, a, a_row, b, acc);
    half_step(upper, a, a_row, b, acc);
  }
};

#if HWY_TARGET == HWY_AVX3
// AVX512-BF16 multiplies both halves of a pair at once. This version of Highway has no target for it, hence
// the one line of assembly.
struct DotPairs {
  using Element = Bf16;
  static constexpr size_t kWidth = 2;
  static constexpr size_t kTileRows = 6;
  static constexpr bool kPacks = false;

  template <size_t kRows, size_t kVectors>
  static HWY_INLINE void step(const Bf16* HWY_RESTRICT a, size_t a_row, const Bf16* HWY_RESTRICT b,
                              V (&acc)[kRows][kVectors]) {
    hn::Vec<Bits<D>> row[kVectors];
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j) row[j] = load_pairs(b + kWidth * j * kLanes);
    HWY_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) {
      const auto value = broadcast_pair(a + kWidth * i * a_row);
      HWY_UNROLL(4)
      for (size_t j = 0; j < kVectors; ++j)
        asm("vdpbf16ps %1, %2, %0" : "+v"(acc[i][j].raw) : "v"(value.raw), "v"(row[j].raw));
    }
  }
};
#else
using DotPairs = SplitPairs;  // never chosen
#endif

template <class Operand>
struct Panel {
  size_t k;  // positions, see Operand::kWidth
  const typename Operand::Element* HWY_RESTRICT a;
  size_t a_row, a_col;
  const typename Operand::Element* HWY_RESTRICT b;
  size_t b_row;
  float* HWY_RESTRICT c;
  size_t c_row;
  bool accumulate;
  const float* HWY_RESTRICT row_start;
};

// Rows [first, first + kRows) of a panel that is kVectors wide.
template <class Operand, size_t kRows, size_t kVectors>
HWY_INLINE void tile(const Panel<Operand>& p, size_t first) {
  const auto* a = p.a + Operand::kWidth * first * p.a_row;
  const auto* b = p.b;
  float* c = p.c + first * p.c_row;
  V acc[kRows][kVectors];
  HWY_UNROLL(8)
  for (size_t i = 0; i < kRows; ++i) {
    const V start = p.row_start != nullptr ? hn::Set(d, p.row_start[first + i]) : hn::Zero(d);
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j)
      acc[i][j] = p.accumulate ? hn::LoadU(d, c + i * p.c_row + j * kLanes) : start;
  }
  for (size_t k = 0; k < p.k; ++k) {
    Operand::step(a, p.a_row, b, acc);
    a += Operand::kWidth * p.a_col;
    b += Operand::kWidth * p.b_row;
  }
  HWY_UNROLL(8)
  for (size_t i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j) hn::StoreU(acc[i][j], d, c + i * p.c_row + j * kLanes);
  }
}

// Requests the next k block of B and of a transposed A into the second-level cache, a little with each tile
// of this block. A tile reads a few elements of each row of A, far apart, which no hardware prefetcher
// foresees.
template <class Operand>
class NextBlock {
 public:
  NextBlock(const GemmOf<typename Operand::Element>& g, size_t first_k) : g_(g), k_(first_k) {
    if (g.a_row != 1 || first_k >= g.k) return;
    const size_t panels = (g.n + kTileVectors * kLanes - 1) / (kTileVectors * kLanes);
    const size_t tiles = panels * (g.m / Operand::kTileRows);  // a lower bound
    if (tiles == 0) return;
    end_ = std::min(first_k + kDepth, g.k);
    with_tile_ = (end_ - k_ + tiles - 1) / tiles;
  }
  HWY_INLINE void ask() {
    for (const size_t end = std::min(k_ + with_tile_, end_); k_ < end; ++k_) {
      ask_for(g_.a + Operand::kWidth * k_ * g_.a_col, g_.m);
      ask_for(g_.b + Operand::kWidth * k_ * g_.b_row, g_.n);
    }
  }

 private:
  using Element = typename Operand::Element;
  static HWY_INLINE void ask_for(const Element* from, size_t positions) {
    const char* const bytes = reinterpret_cast<const char*>(from);
    const size_t count = Operand::kWidth * positions * sizeof(Element);
    for (size_t i = 0; i < count; i += kCacheLine) prefetch_line(bytes + i);
    prefetch_line(bytes + count - 1);  // the row may begin within a line
  }

  const GemmOf<Element>& g_;
  size_t k_, end_ = 0, with_tile_ = 0;  // positions: the next one, and how many with a tile
};

template <class Operand>
HWY_INLINE bool packs(const GemmOf<typename Operand::Element>& g) {
  return Operand::kPacks && g.m >= (g.b_row < kFar ? kRowsToPack : kRowsToPackFar);
}

// All rows of one column panel.
template <class Operand, size_t kVectors>
HWY_NOINLINE void panel(const GemmOf<typename Operand::Element>& g, size_t first_k, size_t k, size_t column,
                        NextBlock<Operand>& next) {
  constexpr size_t kWidth = Operand::kWidth, kRow = kWidth * kVectors * kLanes;
  const typename Operand::Element* b = g.b + kWidth * (first_k * g.b_row + column);
  size_t b_row = g.b_row;
  HWY_ALIGN typename Operand::Element packed[Operand::kPacks ? kPackedDepth * kRow : 1];
  if (packs<Operand>(g)) {
    for (size_t i = 0; i < k; ++i)
      std::memcpy(packed + i * kRow, b + kWidth * i * b_row, kRow * sizeof(*packed));
    b = packed;
    b_row = kVectors * kLanes;
  }
  const Panel<Operand> p{
      k,       g.a + kWidth * first_k * g.a_col, g.a_row,    g.a_col, b, b_row, g.c + column,
      g.c_row, g.accumulate || first_k > 0,      g.row_start};
  constexpr size_t kTileRows = Operand::kTileRows;
  size_t i = 0;
  // A tile of 2 rows takes as long as one of 4, because it waits for its sums. So the last 8 rows are two
  // tiles of 4.
  for (; i + kTileRows <= g.m && g.m - i != 8; i += kTileRows) {
    next.ask();
    tile<Operand, kTileRows, kVectors>(p, i);
  }
  for (; i + 4 <= g.m; i += 4) {
    next.ask();
    tile<Operand, 4, kVectors>(p, i);
  }
  for (; i + 2 <= g.m; i += 2) tile<Operand, 2, kVectors>(p, i);
  if (i < g.m) tile<Operand, 1, kVectors>(p, i);
}

template <class Operand>
HWY_INLINE void multiply(const GemmOf<typename Operand::Element>& g) {
  if (g.k == 0 && !g.accumulate)
    for (size_t i = 0; i < g.m; ++i)
      std::fill_n(g.c + i * g.c_row, g.n, g.row_start != nullptr ? g.row_start[i] : 0.0f);
  const size_t most = packs<Operand>(g) && g.a_row != 1 ? kPackedDepth : kDepth;
  for (size_t first_k = 0; first_k < g.k; first_k += most) {
    const size_t k = std::min(most, g.k - first_k);
    NextBlock<Operand> next(g, first_k + k);
    size_t column = 0;
    for (; column + kTileVectors * kLanes <= g.n; column += kTileVectors * kLanes)
      panel<Operand, kTileVectors>(g, first_k, k, column, next);
    for (; column + kLanes < g.n; column += 2 * kLanes) panel<Operand, 2>(g, first_k, k, column, next);
    if (column < g.n) panel<Operand, 1>(g, first_k, k, column, next);
  }
}

void gemm_floats(const Gemm& g) { multiply<Floats>(g); }
void gemm_split_pairs(const PairGemm& g) { multiply<SplitPairs>(g); }
void gemm_dot_pairs(const PairGemm& g) { multiply<DotPairs>(g); }

// ---- Packing of pairs ----

void pack_pairs(const float* even, const float* odd, Bf16* out, size_t n) {
  for (size_t i = 0; i < n; i += kLanes) {
    const auto low = hn::ShiftRight<16>(round_to_bf16(d, hn::LoadU(d, even + i)));
    const auto high = odd == nullptr ? hn::Zero(u32) : round_to_bf16(d, hn::LoadU(d, odd + i));
    store_pairs(hn::Or(low, hn::And(high, hn::Set(u32, 0xffff0000u))), out + 2 * i);
  }
}

void interleave(const Bf16* even, const Bf16* odd, Bf16* out, size_t n) {
  const hn::Rebind<uint16_t, D> halves;
  for (size_t i = 0; i < n; i += kLanes) {
    const auto low = hn::PromoteTo(u32, hn::LoadU(halves, &even[i].bits));
    const auto high = odd == nullptr ? hn::Zero(u32) : hn::PromoteTo(u32, hn::LoadU(halves, &odd[i].bits));
    store_pairs(hn::Or(low, hn::ShiftLeft<16>(high)), out + 2 * i);
  }
}

void narrow(const float* x, Bf16* out, size_t n) {
  for (size_t i = 0; i < n; i += kLanes) store(d, hn::LoadU(d, x + i), out + i);
}

void widen(const Bf16* x, float* out, size_t n) {
  for (size_t i = 0; i < n; i += kLanes) hn::StoreU(load(d, x + i), d, out + i);
}

}  // namespace modelet::shard::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::shard::kernels {

HWY_EXPORT(gemm_floats);
HWY_EXPORT(gemm_split_pairs);
HWY_EXPORT(gemm_dot_pairs);
HWY_EXPORT(pack_pairs);
HWY_EXPORT(interleave);
HWY_EXPORT(narrow);
HWY_EXPORT(widen);

void gemm(const Gemm& args) { HWY_DYNAMIC_DISPATCH(gemm_floats)(args); }
void gemm(const PairGemm& args) {
  // A row takes as long as a tile of rows. On processors with tiles, pairs one by one take as long as floats.
  constexpr size_t kRowsForTiles = 6;
  if (tiles_in_use() && args.m >= kRowsForTiles) {
    gemm_on_tiles(args);
  } else if (dot_pairs_in_use()) {
    HWY_DYNAMIC_DISPATCH(gemm_dot_pairs)(args);
  } else {
    HWY_DYNAMIC_DISPATCH(gemm_split_pairs)(args);
  }
}
void gemm_of_pairs(const Gemm& args, const Bf16* b_pairs, Bf16* a_pairs) {
  const size_t pairs = (args.k + 1) / 2;
  const bool by_rows = args.a_col == 1;
  if (by_rows)
    for (size_t i = 0; i < args.m; ++i) narrow(args.a + i * args.a_row, a_pairs + 2 * i * pairs, args.k);
  else
    pack_pairs({args.a, args.k, args.m, args.a_col}, a_pairs, args.m);
  gemm(PairGemm{.m = args.m,
                .n = args.n,
                .k = pairs,
                .a = a_pairs,
                .a_row = by_rows ? pairs : 1,
                .a_col = by_rows ? 1 : args.m,
                .b = b_pairs,
                .b_row = args.n,
                .c = args.c,
                .c_row = args.c_row,
                .accumulate = args.accumulate,
                .row_start = args.row_start});
}
void pack_pairs(const float* even, const float* odd, Bf16* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(pack_pairs)(even, odd, out, n);
}
void pack_pairs(ConstMatrix matrix, Bf16* out, size_t stride) {
  for (size_t r = 0; r < matrix.rows; r += 2)
    pack_pairs(matrix.row(r), r + 1 < matrix.rows ? matrix.row(r + 1) : nullptr, out + r * stride,
               matrix.cols);
}
void interleave(const Bf16* even, const Bf16* odd, Bf16* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(interleave)(even, odd, out, n);
}
void narrow(const float* x, Bf16* out, size_t n) { HWY_DYNAMIC_DISPATCH(narrow)(x, out, n); }
void widen(const Bf16* x, float* out, size_t n) { HWY_DYNAMIC_DISPATCH(widen)(x, out, n); }

}  // namespace modelet::shard::kernels
#endif  // HWY_ONCE
