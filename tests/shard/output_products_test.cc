// The products of the shared output layer, of every kind, against plain sums.
#include "shard/output_products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "base/aligned.h"
#include "base/experiment.h"
#include "base/rng.h"

namespace modelet::shard {
namespace {

constexpr size_t kProductWidth = 48, kModeletRows = 400;

AlignedVector<float> normal_values(size_t count, uint64_t seed) {
  AlignedVector<float> values(count);
  Rng rng(seed);
  for (float& value : values) value = rng.normal();
  return values;
}

Modelet random_modelet(Precision precision) {
  Experiment experiment;
  experiment.model.precision = precision;
  Modelet modelet(
      {.layer = 1, .kind = LayerKind::kOutput, .inputs = kProductWidth, .begin = 0, .end = kModeletRows},
      experiment, true);
  Rng rng(3);
  for (size_t r = 0; r < kModeletRows; ++r) {
    modelet.parameters().set_row(r, normal_values(kProductWidth, r).data());
    modelet.parameters().bias(r) = rng.normal();
  }
  return modelet;
}

// A sum of products, and how far rounding may take one.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};

// Precision of the weights, as pairs or not, and samples.
class OutputProductsTest : public ::testing::TestWithParam<std::tuple<Precision, bool, size_t>> {};

INSTANTIATE_TEST_SUITE_P(Kinds, OutputProductsTest,
                         ::testing::Combine(::testing::Values(Precision::kFp32, Precision::kBf16),
                                            ::testing::Bool(), ::testing::Values<size_t>(7, 40)));

TEST_P(OutputProductsTest, AreTheSums) {
  const auto [precision, pairs, samples] = GetParam();
  const size_t columns = padded(samples);
  // Two operands of bf16, each rounded by a 256th of itself at most; or sums of floats.
  const double tolerance = precision == Precision::kBf16 && pairs ? 1.01 / 128 : 1e-5;
  const auto expect_sum = [&](float value, const Sum& sum) {
    EXPECT_NEAR(value, sum.value, tolerance * sum.magnitude);
  };
  Modelet modelet = random_modelet(precision);
  ThreadPool pool(2);
  const auto products = make_output_products(precision, pool, pairs);
  const AlignedVector<float> hidden = normal_values(samples * kProductWidth, 1);
  AlignedVector<float> transposed(kProductWidth * columns);
  for (size_t s = 0; s < samples; ++s)
    for (size_t c = 0; c < kProductWidth; ++c) transposed[c * columns + s] = hidden[s * kProductWidth + c];

  for (const size_t active : {size_t{1}, size_t{131}, kModeletRows}) {
    SCOPED_TRACE(active);
    const bool all = active == kModeletRows;
    std::vector<ActiveNeuron> neurons(active);
    for (size_t a = 0; a < active; ++a)
      neurons[a] = {0, static_cast<uint32_t>(all ? a : (a * 37) % kModeletRows)};
    AlignedVector<float> weights(active * kProductWidth);
    for (size_t a = 0; a < active; ++a)
      modelet.parameters().add_row(neurons[a].row, 1, &weights[a * kProductWidth]);

    std::vector<float> biases(active, 0.5f);
    Modelet* const modelets[] = {&modelet};
    size_t in_runs = 0;
    for (const ActiveRun& run : products->gather(modelets, neurons, all, samples, kProductWidth, biases))
      in_runs += run.count;
    EXPECT_EQ(in_runs, active);
    for (size_t a = 0; a < active; ++a)
      EXPECT_EQ(biases[a], 0.5f + modelet.parameters().bias(neurons[a].row));
    const SampleRange range{0, samples};
    products->take_hidden({hidden.data(), samples, kProductWidth, kProductWidth},
                          {transposed.data(), kProductWidth, columns, columns}, range);

    AlignedVector<float> logits(active * columns), rows(OutputProducts::kLargestPiece * kProductWidth);
    for (size_t first = 0; first < active; first += OutputProducts::kLargestPiece) {
      const size_t count = std::min(OutputProducts::kLargestPiece, active - first);
      float* const piece = &logits[first * columns];
      products->logits(first, count, range, &biases[first], piece);
      products->keep_activations(first, count, range, piece);
      products->gradient_rows(count, piece, rows.data());
      for (size_t a = 0; a < count; ++a) {
        std::vector<Sum> gradient(kProductWidth);
        for (size_t s = 0; s < samples; ++s) {
          Sum logit;
          logit.add(biases[first + a]);
          for (size_t c = 0; c < kProductWidth; ++c) {
            logit.add(double{hidden[s * kProductWidth + c]} * weights[(first + a) * kProductWidth + c]);
            gradient[c].add(double{piece[a * columns + s]} * hidden[s * kProductWidth + c]);
          }
          expect_sum(piece[a * columns + s], logit);
        }
        for (size_t c = 0; c < kProductWidth; ++c) expect_sum(rows[a * kProductWidth + c], gradient[c]);
      }
    }

    AlignedVector<float> positive(samples * kProductWidth);
    products->positive(logits.data(), 0, samples, positive.data());
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
