// Every kind of product of the shared output layer, compared with plain sums.
#include "shard/layers/output/output_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/padding.h"
#include "base/experiment/experiment.h"
#include "base/rng.h"

namespace modelet::shard {
namespace {

constexpr size_t kProductWidth = 48, kModeletRows[] = {150, 250}, kAllRows = 400;

AlignedVector<float> normal_values(size_t count, uint64_t seed) {
  AlignedVector<float> values(count);
  Rng rng(seed);
  for (float& value : values) value = rng.normal();
  return values;
}

Modelet random_modelet(Precision precision, size_t rows) {
  Modelet modelet({.layer = 1, .kind = LayerKind::kOutput, .inputs = kProductWidth, .begin = 0, .end = rows},
                  ModeletOptions{.precision = precision, .optimizer = OptimizerKind::kAdam});
  Rng rng(rows);
  for (size_t r = 0; r < rows; ++r) {
    modelet.parameters().set_row(r, normal_values(kProductWidth, 1000 * rows + r).data());
    modelet.parameters().bias(r) = rng.normal();
  }
  return modelet;
}

// A sum of products, and its magnitude, which limits the rounding error.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};

// Parameters: the precision of the weights, whether they are multiplied as pairs, and the number of samples.
class OutputProductsTest : public ::testing::TestWithParam<std::tuple<Precision, bool, size_t>> {};

INSTANTIATE_TEST_SUITE_P(Kinds, OutputProductsTest,
                         ::testing::Combine(::testing::Values(Precision::kFp32, Precision::kBf16),
                                            ::testing::Bool(), ::testing::Values<size_t>(7, 40)));

TEST_P(OutputProductsTest, AreTheSums) {
  const auto [precision, pairs, samples] = GetParam();
  const size_t columns = padded(samples);
  // Two operands in bf16, each rounded by at most 1/256 of its size; or sums of floats.
  const double tolerance = precision == Precision::kBf16 && pairs ? 1.01 / 128 : 1e-5;
  const auto expect_sum = [&](float value, const Sum& sum) {
    EXPECT_NEAR(value, sum.value, tolerance * sum.magnitude);
  };
  Modelet first_modelet = random_modelet(precision, kModeletRows[0]);
  Modelet second_modelet = random_modelet(precision, kModeletRows[1]);
  Modelet* const modelets[] = {&first_modelet, &second_modelet};
  ThreadPool pool(2);
  const auto products = make_output_products(precision, pool, pairs);
  const AlignedVector<float> hidden = normal_values(samples * kProductWidth, 1);
  AlignedVector<float> transposed(kProductWidth * columns);
  for (size_t s = 0; s < samples; ++s)
    for (size_t c = 0; c < kProductWidth; ++c) transposed[c * columns + s] = hidden[s * kProductWidth + c];

  // Ranges begin at whole vectors of samples.
  std::vector<SampleRange> ranges = {{0, std::min<size_t>(16, samples)}};
  if (samples > 16) ranges.push_back({16, samples});

  for (const size_t active : {size_t{1}, size_t{131}, kAllRows}) {
    SCOPED_TRACE(active);
    const bool all = active == kAllRows;
    std::vector<ActiveNeuron> neurons(active);
    for (size_t a = 0; a < active; ++a) {
      const auto row = static_cast<uint32_t>(all ? a : (a * 37) % kAllRows);
      neurons[a] = row < kModeletRows[0] ? ActiveNeuron{0, row}
                                         : ActiveNeuron{1, row - static_cast<uint32_t>(kModeletRows[0])};
    }
    AlignedVector<float> weights(active * kProductWidth);
    for (size_t a = 0; a < active; ++a)
      modelets[neurons[a].modelet]->parameters().add_row(neurons[a].row, 1, &weights[a * kProductWidth]);

    std::vector<float> biases(active, 0.5f);
    std::vector<ActiveRange> pieces;
    size_t in_runs = 0;
    for (const ActiveRange& run : products->gather(modelets, neurons, all, samples, kProductWidth, biases)) {
      EXPECT_EQ(run.first, in_runs);
      in_runs += run.count;
      for (size_t i = 0; i < run.count; i += OutputProducts::kLargestPiece)
        pieces.push_back({run.first + i, std::min(OutputProducts::kLargestPiece, run.count - i)});
    }
    EXPECT_EQ(in_runs, active);
    for (size_t a = 0; a < active; ++a)
      EXPECT_EQ(biases[a], 0.5f + modelets[neurons[a].modelet]->parameters().bias(neurons[a].row));

    AlignedVector<float> logits(active * columns), rows(OutputProducts::kLargestPiece * kProductWidth);
    for (const SampleRange& range : ranges) {
      products->take_hidden({hidden.data(), samples, kProductWidth, kProductWidth},
                            {transposed.data(), kProductWidth, columns, columns}, range);
      for (const ActiveRange& piece : pieces) {
        float* const out = &logits[piece.first * columns + range.begin];
        products->logits(piece.first, piece.count, range, &biases[piece.first], out);
        products->keep_activations(piece.first, piece.count, range, out);
      }
    }
    for (const ActiveRange& piece : pieces) {
      products->gradient_rows(piece.count, &logits[piece.first * columns], rows.data());
      for (size_t a = piece.first; a < piece.first + piece.count; ++a) {
        std::vector<Sum> gradient(kProductWidth);
        for (size_t s = 0; s < samples; ++s) {
          Sum logit;
          logit.add(biases[a]);
          for (size_t c = 0; c < kProductWidth; ++c) {
            logit.add(double{hidden[s * kProductWidth + c]} * weights[a * kProductWidth + c]);
            gradient[c].add(double{logits[a * columns + s]} * hidden[s * kProductWidth + c]);
          }
          expect_sum(logits[a * columns + s], logit);
        }
        for (size_t c = 0; c < kProductWidth; ++c)
          expect_sum(rows[(a - piece.first) * kProductWidth + c], gradient[c]);
      }
    }

    AlignedVector<float> positive(samples * kProductWidth);
    const size_t half = samples / 2;
    products->positive(logits.data(), 0, half, positive.data());
    products->positive(logits.data(), half, samples, &positive[half * kProductWidth]);
    for (size_t s = 0; s < samples; ++s)
      for (size_t c = 0; c < kProductWidth; ++c) {
        Sum sum;
        for (size_t a = 0; a < active; ++a)
          sum.add(double{logits[a * columns + s]} * weights[a * kProductWidth + c]);
        expect_sum(positive[s * kProductWidth + c], sum);
      }

    std::vector<float> row(kProductWidth, 1.0f);
    products->add_row(active - 1, row.data());
    for (size_t c = 0; c < kProductWidth; ++c)
      EXPECT_EQ(row[c], 1 + weights[(active - 1) * kProductWidth + c]);
  }
}

}  // namespace
}  // namespace modelet::shard
