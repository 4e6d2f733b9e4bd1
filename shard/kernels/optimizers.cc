// Rows of a lazily updated parameter matrix, stored as fp32 or as bf16. The arithmetic is fp32; weights
// and accumulated squares, whose changes are often too small for bf16, are rounded stochastically.
#include <cstring>

#include "base/aligned.h"
#include "shard/kernels/kernels.h"
#include "shard/kernels/targets.h"
#include "shard/prefetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/optimizers.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>

#include "shard/kernels/vector-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

constexpr uint32_t kUpperHalf = 0xffff0000;

// What one turn of a loop over a row works on: one vector of fp32, or two of bf16, the even and the odd
// elements of a register full of them, which come out of it and go back without a shuffle.
template <class T>
constexpr size_t kParts = sizeof(float) / sizeof(T);
template <class T, class Tag>
struct Elements {
  hn::Vec<Tag> part[kParts<T>];
};

// Calls turn(i, tag) for the parts of a row that begin at i. Rows of fp32 may have any length: biases are
// single values, which go through a vector of which one lane counts.
template <class T, class Turn>
HWY_INLINE void for_each_turn(size_t n, const Turn& turn) {
  size_t i = 0;
  for (; i + kParts<T> * kLanes <= n; i += kParts<T> * kLanes) turn(i, d);
  const hn::CappedTag<float, sizeof(T) == sizeof(float) ? 1 : kVectorFloats / 2> rest;
  for (; i < n; i += kParts<T> * hn::Lanes(rest)) turn(i, rest);
}

// Pairs of bf16 as 32-bit integers, of which the first is the lower half.
template <class Tag>
HWY_INLINE hn::Vec<Bits<Tag>> load_pairs(Tag, const Bf16* from) {
  const Bits<Tag> u32;
#if HWY_TARGET == HWY_SCALAR  // a lane of 32 bits cannot be taken for two of 16
  uint32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return hn::Set(u32, pair);
#else
  return hn::BitCast(u32, hn::LoadU(hn::Repartition<uint16_t, Tag>(), &from->bits));
#endif
}
template <class Tag>
HWY_INLINE void store_pairs(Tag, hn::Vec<Bits<Tag>> pairs, Bf16* to) {
#if HWY_TARGET == HWY_SCALAR
  const uint32_t pair = hn::GetLane(pairs);
  std::memcpy(&to->bits, &pair, sizeof(pair));
#else
  const hn::Repartition<uint16_t, Tag> halves;
  hn::StoreU(hn::BitCast(halves, pairs), halves, &to->bits);
#endif
}

template <class Tag>
HWY_INLINE Elements<float, Tag> load_row(Tag tag, const float* from) {
  return {{hn::LoadU(tag, from)}};
}
template <class Tag>
HWY_INLINE Elements<Bf16, Tag> load_row(Tag tag, const Bf16* from) {
  const auto pairs = load_pairs(tag, from);
  return {{hn::BitCast(tag, hn::ShiftLeft<16>(pairs)),
           hn::BitCast(tag, hn::And(pairs, hn::Set(Bits<Tag>(), kUpperHalf)))}};
}

// Gradients are fp32 in any case. (No Elements without values: GCC makes their constructor outside of this
// namespace, where NEON's instructions are not allowed.)
template <class T, class Tag>
HWY_INLINE Elements<T, Tag> load_gradient(Tag tag, const float* from) {
  if constexpr (kParts<T> == 1) {
    return {{hn::LoadU(tag, from)}};
  } else {
    hn::Vec<Tag> even, odd;
    hn::LoadInterleaved2(tag, from, even, odd);
    return {{even, odd}};
  }
}

template <class Tag>
HWY_INLINE void store_row(Tag tag, const Elements<float, Tag>& values, const Elements<float, Bits<Tag>>&,
                          float* to) {
  hn::StoreU(values.part[0], tag, to);
}
// Adds `noise`, in [0, 2^16), to the bits of the values and drops the lower halves.
template <class Tag>
HWY_INLINE void store_row(Tag tag, const Elements<Bf16, Tag>& values, const Elements<Bf16, Bits<Tag>>& noise,
                          Bf16* to) {
  const Bits<Tag> u32;
  const auto even = hn::Add(hn::BitCast(u32, values.part[0]), noise.part[0]);
  const auto odd = hn::Add(hn::BitCast(u32, values.part[1]), noise.part[1]);
  store_pairs(tag, hn::OrAnd(hn::ShiftRight<16>(even), odd, hn::Set(u32, kUpperHalf)), to);
}

// Noise that rounds to the nearest bf16 (away from zero halfway), and noise that rounds by chance: one number
// of 32 bits serves two neighbours twice, the halves exchanged. So the two parameters that share a half are
// not those of one element.
template <class T, class Tag>
struct Noise {
  using Values = Elements<T, Bits<Tag>>;
  Values nearest, weights, squares;
};

// A function of the elements' place i in the row and not of the vector's size. Mixer: "lowbias32" (Wellons,
// 2018). fp32 needs none.
template <class T, class Tag>
HWY_INLINE Noise<T, Tag> make_noise(Tag, uint32_t seed, size_t i) {
  Noise<T, Tag> noise{};
  if constexpr (kParts<T> == 2) {
    const Bits<Tag> u32;
    auto x = hn::Add(hn::Iota(u32, static_cast<uint32_t>(i / 2)), hn::Set(u32, seed));
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(u32, 0x7feb352du));
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(u32, 0x846ca68bu));
    x = hn::Xor(x, hn::ShiftRight<16>(x));
    const auto low = hn::AndNot(hn::Set(u32, kUpperHalf), x), high = hn::ShiftRight<16>(x);
    const auto half = hn::Set(u32, 0x8000u);
    noise = {{{half, half}}, {{low, high}}, {{high, low}}};
  }
  return noise;
}

// Asks for the part of the row `ahead` that a turn at element i stands for: as many bytes, one after the
// other, as the turn reads of the kArrays arrays of its own row.
template <class T, size_t kArrays, class Tag>
HWY_INLINE void fetch_ahead(Tag tag, const void* ahead, size_t i) {
  if (ahead == nullptr) return;
  constexpr size_t kBytes = kArrays * kParts<T> * hn::MaxLanes(tag) * sizeof(T);
  const char* from = static_cast<const char*>(ahead) + kArrays * i * sizeof(T);
  HWY_UNROLL(3)
  for (size_t at = 0; at < kBytes; at += kCacheLine) prefetch_line(from + at);
}

// Arguments are copied: a reference would be read again after each store, which might have changed it.
template <class T>
HWY_INLINE void adam_rows(const AdamArgs args, std::span<const RowUpdate<T>> rows, const RowLayout layout) {
  for (const RowUpdate<T> row : rows) {
    T *weights = row.row, *first = weights + layout.vector, *second = first + layout.vector;
    for_each_turn<T>(layout.n, [&](size_t i, auto tag) HWY_ATTR {
      fetch_ahead<T, 3>(tag, row.ahead, i);
      const auto g = load_gradient<T>(tag, row.gradient + i);
      auto w = load_row(tag, weights + i), m = load_row(tag, first + i), v = load_row(tag, second + i);
      HWY_UNROLL(2)
      for (size_t p = 0; p < kParts<T>; ++p) {
        m.part[p] =
            hn::MulAdd(hn::Set(tag, args.beta1), m.part[p], hn::Mul(hn::Set(tag, 1 - args.beta1), g.part[p]));
        v.part[p] = hn::MulAdd(hn::Set(tag, args.beta2), v.part[p],
                               hn::Mul(hn::Set(tag, 1 - args.beta2), hn::Mul(g.part[p], g.part[p])));
        const auto root =
            hn::Add(hn::Sqrt(hn::Mul(v.part[p], hn::Set(tag, row.second_scale))), hn::Set(tag, args.epsilon));
        w.part[p] = hn::Sub(w.part[p], hn::Div(hn::Mul(hn::Set(tag, row.rate), m.part[p]), root));
      }
      const auto noise = make_noise<T>(tag, row.noise, i);
      store_row(tag, m, noise.nearest, first + i);
      store_row(tag, v, noise.squares, second + i);
      store_row(tag, w, noise.weights, weights + i);
    });
  }
}

template <class T>
HWY_INLINE void adagrad_rows(const AdagradArgs args, std::span<const RowUpdate<T>> rows,
                             const RowLayout layout) {
  for (const RowUpdate<T> row : rows) {
    T *weights = row.row, *square_sum = weights + layout.vector;
    for_each_turn<T>(layout.n, [&](size_t i, auto tag) HWY_ATTR {
      fetch_ahead<T, 2>(tag, row.ahead, i);
      const auto g = load_gradient<T>(tag, row.gradient + i);
      auto w = load_row(tag, weights + i), s = load_row(tag, square_sum + i);
      HWY_UNROLL(2)
      for (size_t p = 0; p < kParts<T>; ++p) {
        s.part[p] = hn::MulAdd(g.part[p], g.part[p], s.part[p]);
        const auto root = hn::Add(hn::Sqrt(s.part[p]), hn::Set(tag, args.epsilon));
        w.part[p] = hn::Sub(w.part[p], hn::Div(hn::Mul(hn::Set(tag, row.rate), g.part[p]), root));
      }
      const auto noise = make_noise<T>(tag, row.noise, i);
      store_row(tag, s, noise.squares, square_sum + i);
      store_row(tag, w, noise.weights, weights + i);
    });
  }
}

template <class T>
HWY_INLINE void momentum_rows(const MomentumArgs args, std::span<const RowUpdate<T>> rows,
                              const RowLayout layout) {
  for (const RowUpdate<T> row : rows) {
    T *weights = row.row, *velocity = weights + layout.vector;
    for_each_turn<T>(layout.n, [&](size_t i, auto tag) HWY_ATTR {
      fetch_ahead<T, 2>(tag, row.ahead, i);
      const auto g = load_gradient<T>(tag, row.gradient + i);
      auto w = load_row(tag, weights + i), u = load_row(tag, velocity + i);
      HWY_UNROLL(2)
      for (size_t p = 0; p < kParts<T>; ++p) {
        u.part[p] = hn::MulAdd(hn::Set(tag, args.momentum), u.part[p], g.part[p]);
        w.part[p] = hn::NegMulAdd(hn::Set(tag, row.rate), u.part[p], w.part[p]);
      }
      const auto noise = make_noise<T>(tag, row.noise, i);
      store_row(tag, u, noise.nearest, velocity + i);
      store_row(tag, w, noise.weights, weights + i);
    });
  }
}

void adam_fp32(const AdamArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  adam_rows(args, rows, layout);
}
void adam_bf16(const AdamArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout) {
  adam_rows(args, rows, layout);
}
void adagrad_fp32(const AdagradArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  adagrad_rows(args, rows, layout);
}
void adagrad_bf16(const AdagradArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout) {
  adagrad_rows(args, rows, layout);
}
void momentum_fp32(const MomentumArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  momentum_rows(args, rows, layout);
}
void momentum_bf16(const MomentumArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout) {
  momentum_rows(args, rows, layout);
}

}  // namespace modelet::shard::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::shard::kernels {

HWY_EXPORT(adam_fp32);
HWY_EXPORT(adam_bf16);
HWY_EXPORT(adagrad_fp32);
HWY_EXPORT(adagrad_bf16);
HWY_EXPORT(momentum_fp32);
HWY_EXPORT(momentum_bf16);

void adam(const AdamArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  HWY_DYNAMIC_DISPATCH(adam_fp32)(args, rows, layout);
}
void adam(const AdamArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout) {
  HWY_DYNAMIC_DISPATCH(adam_bf16)(args, rows, layout);
}
void adagrad(const AdagradArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  HWY_DYNAMIC_DISPATCH(adagrad_fp32)(args, rows, layout);
}
void adagrad(const AdagradArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout) {
  HWY_DYNAMIC_DISPATCH(adagrad_bf16)(args, rows, layout);
}
void sgd_momentum(const MomentumArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  HWY_DYNAMIC_DISPATCH(momentum_fp32)(args, rows, layout);
}
void sgd_momentum(const MomentumArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout) {
  HWY_DYNAMIC_DISPATCH(momentum_bf16)(args, rows, layout);
}

}  // namespace modelet::shard::kernels
#endif  // HWY_ONCE
