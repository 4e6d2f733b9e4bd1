// One row of a lazily updated parameter matrix, stored as fp32 or as bf16. The arithmetic is fp32; weights
// and accumulated squares, whose changes are often too small for bf16, are rounded stochastically.
#include "shard/kernels/kernels.h"
#include "shard/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/optimizers.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>

#include "shard/kernels/vector-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

// Rows are multiples of a vector, except biases: single values, which go through a vector of which one lane
// counts.
template <class Update>
HWY_INLINE void for_each_vector(size_t n, const Update& update) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) update(i, d);
  const hn::CappedTag<float, 1> one;
  for (; i < n; ++i) update(i, one);
}

// 32 random bits a lane, a function of the element's place i in the row and not of the vector's size. Mixer:
// "lowbias32" (Wellons, 2018).
template <class Tag>
HWY_INLINE hn::Vec<Bits<Tag>> random_bits(Tag, uint32_t seed, size_t i) {
  const Bits<Tag> u32;
  auto x = hn::Add(hn::Iota(u32, static_cast<uint32_t>(i)), hn::Set(u32, seed));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(u32, 0x7feb352du));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(u32, 0x846ca68bu));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// `noise`: 16 random bits a lane. fp32 needs none.
template <class Tag>
HWY_INLINE void store_stochastic(Tag tag, hn::Vec<Tag> value, hn::Vec<Bits<Tag>>, float* to) {
  store(tag, value, to);
}
template <class Tag>
HWY_INLINE void store_stochastic(Tag tag, hn::Vec<Tag> value, hn::Vec<Bits<Tag>> noise, Bf16* to) {
  store_upper_halves(tag, hn::Add(hn::BitCast(Bits<Tag>(), value), noise), to);
}

template <class Tag>
HWY_INLINE hn::Vec<Bits<Tag>> low_half(Tag, hn::Vec<Bits<Tag>> random) {
  return hn::And(random, hn::Set(Bits<Tag>(), 0xffffu));
}

template <class T>
HWY_INLINE void adam_row(const AdamArgs& args, const float* gradient, T* weights, T* first, T* second,
                         size_t n) {
  for_each_vector(n, [&](size_t i, auto tag) HWY_ATTR {
    const auto g = hn::LoadU(tag, gradient + i);
    const auto m =
        hn::MulAdd(hn::Set(tag, args.beta1), load(tag, first + i), hn::Mul(hn::Set(tag, 1 - args.beta1), g));
    const auto v = hn::MulAdd(hn::Set(tag, args.beta2), load(tag, second + i),
                              hn::Mul(hn::Set(tag, 1 - args.beta2), hn::Mul(g, g)));
    const auto root =
        hn::Add(hn::Sqrt(hn::Mul(v, hn::Set(tag, args.second_scale))), hn::Set(tag, args.epsilon));
    const auto change = hn::Div(hn::Mul(hn::Set(tag, args.step_size), m), root);
    const auto random = random_bits(tag, args.noise, i);
    store(tag, m, first + i);
    store_stochastic(tag, v, low_half(tag, random), second + i);
    store_stochastic(tag, hn::Sub(load(tag, weights + i), change), hn::ShiftRight<16>(random), weights + i);
  });
}

template <class T>
HWY_INLINE void adagrad_row(const AdagradArgs& args, const float* gradient, T* weights, T* square_sum,
                            size_t n) {
  for_each_vector(n, [&](size_t i, auto tag) HWY_ATTR {
    const auto g = hn::LoadU(tag, gradient + i);
    const auto s = hn::MulAdd(g, g, load(tag, square_sum + i));
    const auto root = hn::Add(hn::Sqrt(s), hn::Set(tag, args.epsilon));
    const auto change = hn::Div(hn::Mul(hn::Set(tag, args.learning_rate), g), root);
    const auto random = random_bits(tag, args.noise, i);
    store_stochastic(tag, s, low_half(tag, random), square_sum + i);
    store_stochastic(tag, hn::Sub(load(tag, weights + i), change), hn::ShiftRight<16>(random), weights + i);
  });
}

template <class T>
HWY_INLINE void momentum_row(const MomentumArgs& args, const float* gradient, T* weights, T* velocity,
                             size_t n) {
  for_each_vector(n, [&](size_t i, auto tag) HWY_ATTR {
    const auto u =
        hn::MulAdd(hn::Set(tag, args.momentum), load(tag, velocity + i), hn::LoadU(tag, gradient + i));
    const auto w = hn::NegMulAdd(hn::Set(tag, args.learning_rate), u, load(tag, weights + i));
    store(tag, u, velocity + i);
    store_stochastic(tag, w, hn::ShiftRight<16>(random_bits(tag, args.noise, i)), weights + i);
  });
}

void adam_fp32(const AdamArgs& args, const float* gradient, float* weights, float* first, float* second,
               size_t n) {
  adam_row(args, gradient, weights, first, second, n);
}
void adam_bf16(const AdamArgs& args, const float* gradient, Bf16* weights, Bf16* first, Bf16* second,
               size_t n) {
  adam_row(args, gradient, weights, first, second, n);
}
void adagrad_fp32(const AdagradArgs& args, const float* gradient, float* weights, float* square_sum,
                  size_t n) {
  adagrad_row(args, gradient, weights, square_sum, n);
}
void adagrad_bf16(const AdagradArgs& args, const float* gradient, Bf16* weights, Bf16* square_sum, size_t n) {
  adagrad_row(args, gradient, weights, square_sum, n);
}
void momentum_fp32(const MomentumArgs& args, const float* gradient, float* weights, float* velocity,
                   size_t n) {
  momentum_row(args, gradient, weights, velocity, n);
}
void momentum_bf16(const MomentumArgs& args, const float* gradient, Bf16* weights, Bf16* velocity, size_t n) {
  momentum_row(args, gradient, weights, velocity, n);
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

void adam(const AdamArgs& args, const float* gradient, float* weights, float* first, float* second,
          size_t n) {
  HWY_DYNAMIC_DISPATCH(adam_fp32)(args, gradient, weights, first, second, n);
}
void adam(const AdamArgs& args, const float* gradient, Bf16* weights, Bf16* first, Bf16* second, size_t n) {
  HWY_DYNAMIC_DISPATCH(adam_bf16)(args, gradient, weights, first, second, n);
}
void adagrad(const AdagradArgs& args, const float* gradient, float* weights, float* square_sum, size_t n) {
  HWY_DYNAMIC_DISPATCH(adagrad_fp32)(args, gradient, weights, square_sum, n);
}
void adagrad(const AdagradArgs& args, const float* gradient, Bf16* weights, Bf16* square_sum, size_t n) {
  HWY_DYNAMIC_DISPATCH(adagrad_bf16)(args, gradient, weights, square_sum, n);
}
void sgd_momentum(const MomentumArgs& args, const float* gradient, float* weights, float* velocity,
                  size_t n) {
  HWY_DYNAMIC_DISPATCH(momentum_fp32)(args, gradient, weights, velocity, n);
}
void sgd_momentum(const MomentumArgs& args, const float* gradient, Bf16* weights, Bf16* velocity, size_t n) {
  HWY_DYNAMIC_DISPATCH(momentum_bf16)(args, gradient, weights, velocity, n);
}

}  // namespace modelet::shard::kernels
#endif  // HWY_ONCE
