// Rows of a lazily updated parameter matrix, stored as fp32 or as bf16. The arithmetic is fp32; weights
// and accumulated squares, whose changes are often too small for bf16, are rounded stochastically.
#include "shard/kernels/optimizers.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "base/array/aligned.h"
#include "base/array/prefetch.h"
#include "base/array/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/optimizers.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>

#include "shard/kernels/simd/vector-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

// GCC turns lambdas that it sees twice into functions, which costs a fifth of the time (AVX2).
#define MODELET_INLINE_LAMBDA HWY_ATTR __attribute__((always_inline))

constexpr uint32_t kUpperHalf = 0xffff0000;

// What one turn of a loop over a row processes, as vectors of floats: one if the row is fp32, two if it is
// bf16: the even and the odd elements of a full register, which are separated and joined without a shuffle.
template <class T>
constexpr size_t kFloatVectors = sizeof(float) / sizeof(T);
template <class T, class Tag>
struct Elements {
  hn::Vec<Tag> floats[kFloatVectors<T>];
};

// Calls turn(i, tag) for the elements of a row from i on. Rows of fp32 may have any length: biases are
// single values, which use one lane of a vector.
template <class T, class Turn>
HWY_INLINE void for_each_turn(size_t n, const Turn& turn) {
  size_t i = 0;
  for (; i + kFloatVectors<T> * kLanes <= n; i += kFloatVectors<T> * kLanes) turn(i, d);
  const hn::CappedTag<float, sizeof(T) == sizeof(float) ? 1 : kVectorFloats / 2> rest;
  for (; i < n; i += kFloatVectors<T> * hn::Lanes(rest)) turn(i, rest);
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
// The upper halves of both, side by side. (Not as one operation with three registers: a value to be stored
// would have to wait for the third one; docs/decisions/0022-what-bounds-an-update.md.)
template <class Tag>
HWY_INLINE void store_pairs(Tag, hn::Vec<Bits<Tag>> even, hn::Vec<Bits<Tag>> odd, Bf16* to) {
  const auto low = hn::ShiftRight<16>(even);
#if HWY_TARGET == HWY_SCALAR
  const uint32_t pair = hn::GetLane(hn::OrAnd(low, odd, hn::Set(Bits<Tag>(), kUpperHalf)));
  std::memcpy(&to->bits, &pair, sizeof(pair));
#else
  const hn::Repartition<uint16_t, Tag> halves;
  hn::StoreU(hn::OddEven(hn::BitCast(halves, odd), hn::BitCast(halves, low)), halves, &to->bits);
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

// Gradients are always fp32. (Elements are made with their values: GCC would emit a default constructor
// outside of this namespace, where NEON's instructions are not allowed.)
template <class T, class Tag>
HWY_INLINE Elements<T, Tag> load_gradient(Tag tag, const float* from) {
  if constexpr (kFloatVectors<T> == 1) {
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
  hn::StoreU(values.floats[0], tag, to);
}
// Adds `noise`, in [0, 2^16), to the bits of the values and drops the lower halves.
template <class Tag>
HWY_INLINE void store_row(Tag tag, const Elements<Bf16, Tag>& values, const Elements<Bf16, Bits<Tag>>& noise,
                          Bf16* to) {
  const Bits<Tag> u32;
  const auto even = hn::Add(hn::BitCast(u32, values.floats[0]), noise.floats[0]);
  const auto odd = hn::Add(hn::BitCast(u32, values.floats[1]), noise.floats[1]);
  store_pairs(tag, even, odd, to);
}

// How a vector of the optimiser is rounded to bf16.
enum class Rounding { kNearest, kStochastic };

// Noise that rounds to the nearest bf16 (away from zero halfway), and noise that rounds by chance. One random
// number of 32 bits serves two neighbouring elements twice: for their weights and, with its halves exchanged,
// for a vector of the optimiser. So the two parameters that share a half do not belong to the same element.
template <class T, class Tag>
struct Noise {
  using Values = Elements<T, Bits<Tag>>;
  Values nearest, weights, vector;

  HWY_INLINE const Values& of_vector(Rounding rounding) const {
    return rounding == Rounding::kNearest ? nearest : vector;
  }
};

// The noise depends on the elements' place i in the row, not on the size of vectors. The mixer is "lowbias32"
// (Wellons, 2018) from its first product on, because the seed is mixed already. fp32 needs no noise.
template <class T, class Tag>
HWY_INLINE Noise<T, Tag> make_noise(Tag, uint32_t seed, size_t i) {
  Noise<T, Tag> noise{};
  if constexpr (kFloatVectors<T> == 2) {
    const Bits<Tag> u32;
    constexpr uint32_t kFirst = 0x7feb352du, kSecond = 0x846ca68bu;
    // (seed + i / 2 + lane) * kFirst; the product of a vector is a constant.
    auto x = hn::Add(hn::Set(u32, (seed + static_cast<uint32_t>(i / 2)) * kFirst),
                     hn::Mul(hn::Iota(u32, 0), hn::Set(u32, kFirst)));
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(u32, kSecond));
    x = hn::Xor(x, hn::ShiftRight<16>(x));
    const auto low = hn::AndNot(hn::Set(u32, kUpperHalf), x), high = hn::ShiftRight<16>(x);
    const auto half = hn::Set(u32, 0x8000u);
    noise = {{{half, half}}, {{low, high}}, {{high, low}}};
  }
  return noise;
}

// Requests the part of the row `ahead` that corresponds to the turn at element i: as many bytes, one after
// the other, as the turn reads of the kArrays arrays of its own row.
template <class T, size_t kArrays, class Tag>
HWY_INLINE void fetch_ahead(Tag tag, const void* ahead, size_t i) {
  if (ahead == nullptr) return;
  constexpr size_t kBytes = kArrays * kFloatVectors<T> * hn::MaxLanes(tag) * sizeof(T);
  const char* from = static_cast<const char*>(ahead) + kArrays * i * sizeof(T);
  HWY_UNROLL(3)
  for (size_t at = 0; at < kBytes; at += kCacheLine) prefetch_line(from + at);
}

// A number that is the same for all rows, in all lanes. The whole vector is made before the loops: GCC would
// make it anew for each row, and rows are short.
class Constant {
 public:
  explicit HWY_INLINE Constant(float x) : number_(x), vector_(hn::Set(d, x)) {}
  template <class Tag>
  HWY_INLINE hn::Vec<Tag> in(Tag tag) const {
    if constexpr (std::is_same_v<Tag, D>)
      return vector_;
    else
      return hn::Set(tag, number_);
  }

 private:
  float number_;
  V vector_;
};

// The loop of all optimisers. kRounding: how each of the optimiser's vectors is rounded. step(tag, row,
// gradient, weights, vectors...) updates weights and vectors, as many floats of each as Tag has.
template <class T, Rounding... kRounding, class Step>
HWY_INLINE void step_rows(std::span<const RowUpdate<T>> rows, const RowLayout layout, const Step& step) {
  constexpr std::make_index_sequence<sizeof...(kRounding)> all;
  for (const RowUpdate<T>& update : rows) {
    // A copy, because a reference would be read again after each store, which might have changed it. (GCC
    // keeps this one in registers, but not a loop variable that is a copy.)
    const RowUpdate<T> row = update;
    const auto turn = [&]<class Tag, size_t... v>(size_t i, Tag tag,
                                                  std::index_sequence<v...>) MODELET_INLINE_LAMBDA {
      fetch_ahead<T, 1 + sizeof...(v)>(tag, row.ahead, i);
      const auto g = load_gradient<T>(tag, row.gradient + i);
      T* const weights = row.row + i;
      auto w = load_row(tag, weights);
      Elements<T, Tag> vectors[] = {load_row(tag, weights + (1 + v) * layout.vector)...};
      HWY_UNROLL(2)
      for (size_t f = 0; f < kFloatVectors<T>; ++f)
        step(tag, row, g.floats[f], w.floats[f], vectors[v].floats[f]...);
      const auto noise = make_noise<T>(tag, row.noise, i);
      (store_row(tag, vectors[v], noise.of_vector(kRounding), weights + (1 + v) * layout.vector), ...);
      store_row(tag, w, noise.weights, weights);
    };
    for_each_turn<T>(layout.n, [&](size_t i, auto tag) MODELET_INLINE_LAMBDA { turn(i, tag, all); });
  }
}

template <class T>
HWY_INLINE void adam_rows(const AdamArgs& args, std::span<const RowUpdate<T>> rows, RowLayout layout) {
  const Constant of_first(1 - args.beta1), of_second(1 - args.beta2), epsilon(args.epsilon);
  step_rows<T, Rounding::kNearest, Rounding::kStochastic>(
      rows, layout,
      [=](auto tag, const RowUpdate<T>& row, auto g, auto& w, auto& first, auto& second)
          MODELET_INLINE_LAMBDA {
            first = hn::MulAdd(of_first.in(tag), hn::Sub(g, first), first);
            second = hn::MulAdd(of_second.in(tag), hn::MulSub(g, g, second), second);
            const auto root = hn::Sqrt(hn::Mul(hn::Set(tag, row.second_scale), second));
            w = hn::Sub(w, hn::Div(hn::Mul(hn::Set(tag, row.rate), first), hn::Add(root, epsilon.in(tag))));
          });
}

template <class T>
HWY_INLINE void rmsprop_rows(const RmspropArgs& args, std::span<const RowUpdate<T>> rows, RowLayout layout) {
  const Constant of_second(1 - args.beta2), epsilon(args.epsilon);
  step_rows<T, Rounding::kStochastic>(
      rows, layout,
      [=](auto tag, const RowUpdate<T>& row, auto g, auto& w, auto& second) MODELET_INLINE_LAMBDA {
        second = hn::MulAdd(of_second.in(tag), hn::MulSub(g, g, second), second);
        const auto root = hn::Sqrt(hn::Mul(hn::Set(tag, row.second_scale), second));
        w = hn::Sub(w, hn::Div(hn::Mul(hn::Set(tag, row.rate), g), hn::Add(root, epsilon.in(tag))));
      });
}

template <class T>
HWY_INLINE void adagrad_rows(const AdagradArgs& args, std::span<const RowUpdate<T>> rows, RowLayout layout) {
  const Constant epsilon(args.epsilon);
  step_rows<T, Rounding::kStochastic>(
      rows, layout,
      [=](auto tag, const RowUpdate<T>& row, auto g, auto& w, auto& square_sum) MODELET_INLINE_LAMBDA {
        square_sum = hn::MulAdd(g, g, square_sum);
        const auto root = hn::Sqrt(square_sum);
        w = hn::Sub(w, hn::Div(hn::Mul(hn::Set(tag, row.rate), g), hn::Add(root, epsilon.in(tag))));
      });
}

template <class T>
HWY_INLINE void momentum_rows(const MomentumArgs& args, std::span<const RowUpdate<T>> rows,
                              RowLayout layout) {
  const Constant momentum(args.momentum);
  step_rows<T, Rounding::kNearest>(rows, layout,
                                   [=](auto tag, const RowUpdate<T>& row, auto g, auto& w, auto& velocity)
                                       MODELET_INLINE_LAMBDA {
                                         velocity = hn::MulAdd(momentum.in(tag), velocity, g);
                                         w = hn::NegMulAdd(hn::Set(tag, row.rate), velocity, w);
                                       });
}

void adam_fp32(const AdamArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  adam_rows(args, rows, layout);
}
void adam_bf16(const AdamArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout) {
  adam_rows(args, rows, layout);
}
void rmsprop_fp32(const RmspropArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  rmsprop_rows(args, rows, layout);
}
void rmsprop_bf16(const RmspropArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout) {
  rmsprop_rows(args, rows, layout);
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
HWY_EXPORT(rmsprop_fp32);
HWY_EXPORT(rmsprop_bf16);
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
void rmsprop(const RmspropArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  HWY_DYNAMIC_DISPATCH(rmsprop_fp32)(args, rows, layout);
}
void rmsprop(const RmspropArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout) {
  HWY_DYNAMIC_DISPATCH(rmsprop_bf16)(args, rows, layout);
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
