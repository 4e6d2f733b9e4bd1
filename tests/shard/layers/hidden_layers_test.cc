// Products of a dense hidden layer, of floats and of pairs of bf16, compared with plain sums.
#include "shard/layers/hidden_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/padding.h"
#include "base/rng.h"

namespace modelet::shard {
namespace {

AlignedVector<float> normal_numbers(size_t count, uint64_t seed) {
  AlignedVector<float> values(count);
  Rng rng(seed);
  for (float& value : values) value = rng.normal();
  return values;
}

// Parameters: whether operands are rounded to bf16, and the number of samples.
class HiddenLayerTest : public ::testing::TestWithParam<std::tuple<bool, size_t>> {
 protected:
  static constexpr size_t kInputs = 48, kBegin = 16, kRows[] = {80, 32},
                          kWidth = 160;  // not all columns are here

  HiddenLayerTest() {
    size_t begin = kBegin;
    for (const size_t rows : kRows) {
      modelets_.emplace_back(
          ModeletSpec{
              .layer = 1, .kind = LayerKind::kHidden, .inputs = kInputs, .begin = begin, .end = begin + rows},
          ModeletOptions{.optimizer = OptimizerKind::kSgd});
      Parameters& p = modelets_.back().parameters();
      for (size_t r = 0; r < rows; ++r) {
        p.set_row(r, normal_numbers(kInputs, begin + r).data());
        p.bias(r) = 0.1f * static_cast<float>(r % 7);
      }
      begin += rows;
    }
  }
  // Calls use(neuron, weights, bias) for each neuron that is here.
  template <class Use>
  void for_each_neuron(const Use& use) const {
    for (const Modelet& modelet : modelets_)
      for (size_t r = 0; r < modelet.parameters().rows(); ++r)
        use(modelet.spec().begin + r, modelet.parameters().floats().row(r), modelet.parameters().bias(r));
  }
  // Two operands in bf16, each rounded by at most 1/256 of its size; or sums of floats.
  void expect_sum(float value, double sum, double magnitude) const {
    EXPECT_NEAR(value, sum, (pairs_ ? 1.01 / 128 : 1e-5) * magnitude);
  }

  const bool pairs_ = std::get<0>(GetParam());
  const size_t samples_ = std::get<1>(GetParam());
  ThreadPool pool_{2};
  std::vector<Modelet> modelets_;
  const AlignedVector<float> in_ = normal_numbers(samples_ * kInputs, 1),
                             gradient_ = normal_numbers(samples_ * kWidth, 2);
  const ConstMatrix in{in_.data(), samples_, kInputs, kInputs},
      gradient{gradient_.data(), samples_, kWidth, kWidth};
};

TEST_P(HiddenLayerTest, ComputesTheSums) {
  std::vector<Modelet*> held;
  for (Modelet& modelet : modelets_) held.push_back(&modelet);
  HiddenLayer layer(held, pool_, pairs_);

  Buffer transposed, out, below;
  transpose(in, transposed.resize(kInputs, padded(samples_)), pool_);
  layer.forward(in, transposed.matrix(), out.resize(samples_, kWidth));
  for (size_t s = 0; s < samples_; ++s)
    for_each_neuron([&](size_t neuron, const float* weights, float bias) {
      double sum = bias, magnitude = std::abs(bias);
      for (size_t i = 0; i < kInputs; ++i) {
        sum += double{in.row(s)[i]} * weights[i];
        magnitude += std::abs(double{in.row(s)[i]} * weights[i]);
      }
      expect_sum(out.matrix().row(s)[neuron], std::max(0.0, sum), magnitude);
    });

  layer.backward(gradient, below.resize(samples_, kInputs));
  for (size_t s = 0; s < samples_; ++s)
    for (size_t i = 0; i < kInputs; ++i) {
      double sum = 0, magnitude = 0;
      for_each_neuron([&](size_t neuron, const float* weights, float) {
        sum += double{gradient.row(s)[neuron]} * weights[i];
        magnitude += std::abs(double{gradient.row(s)[neuron]} * weights[i]);
      });
      expect_sum(below.matrix().row(s)[i], sum, magnitude);
    }

  // One step of plain gradient descent shows the gradient.
  std::vector<std::vector<float>> before;  // rows of all modelets
  for_each_neuron(
      [&](size_t, const float* weights, float) { before.emplace_back(weights, weights + kInputs); });
  Experiment::Optimizer plain;
  plain.kind = OptimizerKind::kSgd;
  plain.momentum = 0;
  const AdamCorrections none(plain.beta1, plain.beta2);
  layer.update(in, gradient, {.optimizer = plain, .corrections = none, .learning_rate = 1});
  size_t row = 0;
  for_each_neuron([&](size_t neuron, const float* weights, float) {
    for (size_t i = 0; i < kInputs; ++i) {
      double sum = 0, magnitude = std::abs(before[row][i]);
      for (size_t s = 0; s < samples_; ++s) {
        const double product = double{gradient.row(s)[neuron]} * in.row(s)[i];
        sum += product;
        magnitude += std::abs(product);
      }
      expect_sum(before[row][i] - weights[i], sum, magnitude);
    }
    ++row;
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, HiddenLayerTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Values<size_t>(7, 40)));

}  // namespace
}  // namespace modelet::shard
