// ReLU and dropout of the hidden layers, forward and backward, and the gradient of the last one, compared
// with plain loops.
#include "shard/layers/activation.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "shard/layers/output_gradient.h"

namespace modelet::shard {
namespace {

constexpr size_t kActivationRows = 48, kActivationWidth = 64;

std::vector<float> random_values(uint64_t seed, size_t count) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (float& value : values) value = rng.normal();
  return values;
}

Matrix view(std::vector<float>& values, size_t cols) {
  return {values.data(), values.size() / cols, cols, cols};
}

std::vector<float> dropped(const HiddenDropout& dropout, std::span<const SampleRange> ranges,
                           const std::vector<std::vector<ColumnRange>>& ranks) {
  std::vector<float> values(kActivationRows * kActivationWidth, 2.0f);
  ThreadPool pool(3);
  for (const SampleRange range : ranges)
    for (const std::vector<ColumnRange>& modelets : ranks)
      drop_out(view(values, kActivationWidth), range, 1, modelets, dropout, pool);
  return values;
}

TEST(Activation, DropoutDependsOnThePlaceAlone) {
  const HiddenDropout dropout{.rate = 0.25f, .seed = 3, .step = 8, .first_sample = 96};
  const SampleRange whole[] = {{0, kActivationRows}}, halves[] = {{32, kActivationRows}, {0, 32}};
  const std::vector<float> expected = dropped(dropout, whole, {{{0, 16}, {16, 32}, {48, 16}}});
  EXPECT_EQ(dropped(dropout, halves, {{{48, 16}}, {{0, 16}, {16, 32}}}), expected);
  size_t zeros = 0;
  for (const float value : expected) {
    EXPECT_TRUE(value == 0 || value == 2 * (1 / (1 - 0.25f))) << value;
    zeros += value == 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(zeros) / static_cast<double>(expected.size()), 0.25, 0.05);

  EXPECT_EQ(dropped({}, whole, {{{0, kActivationWidth}}}),
            std::vector<float>(kActivationRows * kActivationWidth, 2.0f));
  for (const HiddenDropout& other :
       {HiddenDropout{0.25f, 4, 8, 96}, HiddenDropout{0.25f, 3, 9, 96}, HiddenDropout{0.25f, 3, 8, 97}})
    EXPECT_NE(dropped(other, whole, {{{0, 16}, {16, 32}, {48, 16}}}), expected);
}

TEST(Activation, BackwardStopsWhereTheActivationIsZero) {
  std::vector<float> activations = random_values(1, kActivationRows * kActivationWidth),
                     packed = random_values(2, kActivationRows * 32);
  activate(activations.data(), activations.size());
  for (const float rate : {0.0f, 0.5f}) {
    std::vector<float> gradient(kActivationRows * kActivationWidth, -9.0f);
    const ColumnRange columns[] = {{16, 16}, {48, 16}};
    backward_activation(view(activations, kActivationWidth), rate, view(packed, 32), columns,
                        view(gradient, kActivationWidth));
    for (size_t s = 0; s < kActivationRows; ++s)
      for (size_t c = 0; c < kActivationWidth; ++c) {
        const bool own = c / 16 % 2 == 1;
        const float passed = activations[s * kActivationWidth + c] > 0 ? 1 / (1 - rate) : 0;
        const float expected = own ? packed[s * 32 + (c >= 48 ? c - 32 : c - 16)] * passed : -9;
        ASSERT_EQ(gradient[s * kActivationWidth + c], expected) << s << ", " << c;
      }
  }
}

TEST(OutputGradient, IsTheSumOfAllRanksPartialSums) {
  constexpr size_t kRanks = 3;
  std::vector<float> activations = random_values(1, kActivationRows * kActivationWidth);
  activate(activations.data(), activations.size());
  BatchLoss loss;
  loss.factors.resize(kRanks);
  const auto fill = [](AlignedVector<float>& to, uint64_t seed) {
    const std::vector<float> values = random_values(seed, kActivationRows);
    to.assign(values.begin(), values.end());
  };
  fill(loss.target_factor, 20);
  std::vector<std::vector<float>> positive, negative;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    fill(loss.factors[rank], 30 + rank);
    positive.push_back(random_values(40 + rank, kActivationRows * kActivationWidth));
    negative.push_back(random_values(50 + rank, kActivationRows * kActivationWidth));
  }
  std::vector<OutputColumns> columns;
  for (const ColumnRange range : {ColumnRange{0, 16}, ColumnRange{32, 32}}) {
    columns.push_back({range, {}});
    for (size_t rank = 0; rank < kRanks; ++rank)
      columns.back().partials.push_back(
          {view(positive[rank], kActivationWidth).columns(range.first, range.count),
           view(negative[rank], kActivationWidth).columns(range.first, range.count)});
  }
  ThreadPool pool(3);
  for (const bool normalised : {true, false}) {
    std::vector<float> gradient(kActivationRows * kActivationWidth, -9.0f);
    OutputGradient(normalised, 0.5f, pool)
        .combine(loss, columns, view(activations, kActivationWidth), view(gradient, kActivationWidth));
    for (size_t s = 0; s < kActivationRows; ++s)
      for (size_t c = 0; c < kActivationWidth; ++c) {
        const size_t i = s * kActivationWidth + c;
        double sum = 0;
        for (size_t rank = 0; rank < kRanks; ++rank)
          sum += double{loss.factors[rank][s]} * positive[rank][i] -
                 (normalised ? double{loss.target_factor[s]} * negative[rank][i] : 0.0);
        const bool own = c < 16 || c >= 32;
        const double expected = own ? (activations[i] > 0 ? 2 * sum : 0) : -9;
        ASSERT_NEAR(gradient[i], expected, 1e-5 * (1 + std::abs(expected))) << s << ", " << c;
      }
  }
}

}  // namespace
}  // namespace modelet::shard
