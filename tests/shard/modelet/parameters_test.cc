// Rows of parameters: an update compared with the formula, and saving and restoring the whole state.
#include "shard/modelet/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/experiment/partition.h"
#include "base/parallel/thread_pool.h"
#include "base/rng.h"
#include "shard/layers/network.h"

namespace modelet::shard {
namespace {

constexpr size_t kRows = 5, kCols = 32;

std::vector<float> random_row(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(n);
  for (float& v : values) v = rng.normal();
  return values;
}

Parameters parameters(Precision precision, OptimizerKind kind = OptimizerKind::kAdam) {
  Parameters p({.rows = kRows, .cols = kCols, .with_bias = true}, precision, kind, 1);
  for (size_t r = 0; r < kRows; ++r) p.set_row(r, random_row(kCols, r).data());
  return p;
}

// Computes the third update of a row, at step 100 of the run, in double precision.
TEST(Parameters, AdamCorrectsByTheRowsClockOrByTheStep) {
  for (const bool row_clocks : {true, false}) {
    Experiment::Optimizer o;
    o.row_clocks = row_clocks;
    const AdamCorrections corrections(o.beta1, o.beta2);
    Parameters p = parameters(Precision::kFp32);
    const std::vector<float> start(p.floats().row(2), p.floats().row(2) + kCols);
    std::vector<double> w(start.begin(), start.end()), m(kCols), v(kCols);
    double bias = 0, bias_m = 0, bias_v = 0;
    const uint64_t steps[] = {7, 50, 100};
    for (uint64_t i = 0; i < 3; ++i) {
      const UpdateRule rule{o, corrections, steps[i], 0.01f};
      std::vector<float> gradient = random_row(kCols, 10 + i);
      const double t = row_clocks ? static_cast<double>(i + 1) : static_cast<double>(steps[i] + 1);
      const auto adam = [&](double g, double& weight, double& first, double& second) {
        first = 0.9 * first + 0.1 * g;
        second = 0.999 * second + 0.001 * g * g;
        weight -=
            0.01 * first / (1 - std::pow(0.9, t)) / (std::sqrt(second / (1 - std::pow(0.999, t))) + 1e-8);
      };
      for (size_t c = 0; c < kCols; ++c) adam(gradient[c], w[c], m[c], v[c]);
      adam(0.5, bias, bias_m, bias_v);
      p.update(2, gradient.data(), 0.5f, rule);
    }
    for (size_t c = 0; c < kCols; ++c) EXPECT_NEAR(p.floats().row(2)[c], w[c], 1e-5);
    EXPECT_NEAR(p.bias(2), bias, 1e-5);
    EXPECT_EQ(p.bias(1), 0) << "other rows stay";
    EXPECT_EQ(p.floats().row(3)[0], random_row(kCols, 3)[0]);
  }
}

// The effect of a step on a column does not depend on the columns beside it, not even in its rounding.
TEST(Parameters, ARunOfColumnsIsUpdatedAsEachModeletAlone) {
  constexpr size_t kModeletCols = 16;
  for (const OptimizerKind kind : all_values<OptimizerKind>()) {
    Experiment::Optimizer o;
    o.kind = kind;
    const AdamCorrections corrections(o.beta1, o.beta2);
    Parameters run({.rows = kRows, .cols = kCols}, Precision::kBf16, kind, 1);
    std::vector<Parameters> modelets;
    for (size_t first = 0; first < kCols; first += kModeletCols)
      modelets.push_back(Parameters({.rows = kRows, .cols = kModeletCols, .first_column = first},
                                    Precision::kBf16, kind, 1));
    const std::vector<float> start = random_row(kCols, 3);
    run.set_row(2, start.data());
    for (size_t i = 0; i < modelets.size(); ++i) modelets[i].set_row(2, start.data() + i * kModeletCols);
    for (uint64_t step = 0; step < 20; ++step) {
      const UpdateRule rule{o, corrections, step, 1e-3f};
      std::vector<float> gradient = random_row(kCols, 10 + step);
      for (size_t i = 0; i < modelets.size(); ++i) {
        std::vector<float> of_modelet(gradient.begin() + static_cast<ptrdiff_t>(i * kModeletCols),
                                      gradient.begin() + static_cast<ptrdiff_t>((i + 1) * kModeletCols));
        modelets[i].update(2, of_modelet.data(), 0, rule);
      }
      run.update(2, gradient.data(), 0, rule);
    }
    for (size_t i = 0; i < modelets.size(); ++i) {
      Parameters view = run.columns(i * kModeletCols, kModeletCols);
      EXPECT_EQ(view.first_column(), modelets[i].first_column());
      const auto seen = view.arrays(), expected = modelets[i].arrays();
      ASSERT_EQ(seen.size(), expected.size());
      for (size_t a = 0; a < seen.size(); ++a)
        EXPECT_EQ(seen[a].packed(), expected[a].packed()) << seen[a].name;
    }
  }
}

// The first replica of a model rounds like a model without replicas. Each other replica rounds in its own
// way.
TEST(Parameters, EachReplicaRoundsForItself) {
  for (const OptimizerKind kind : all_values<OptimizerKind>()) {
    Experiment::Optimizer o;
    o.kind = kind;
    const AdamCorrections corrections(o.beta1, o.beta2);
    const auto weights = [&](uint64_t first_sample) {
      Parameters p = parameters(Precision::kBf16, kind);
      for (uint64_t step = 0; step < 10; ++step) {
        UpdateRule rule{o, corrections, step, 1e-3f};
        if (first_sample > 0) rule.first_sample = first_sample;
        std::vector<float> gradient = random_row(kCols, 10 + step);
        p.update(2, gradient.data(), 0, rule);
      }
      return p.arrays()[0].packed();
    };
    EXPECT_NE(weights(32), weights(0));
    EXPECT_NE(weights(32), weights(64));
    EXPECT_EQ(weights(32), weights(32));
  }
}

TEST(Parameters, ArraysGoOutAndInWhole) {
  const Experiment::Optimizer o;
  const AdamCorrections corrections(o.beta1, o.beta2);
  for (const Precision precision : {Precision::kFp32, Precision::kBf16})
    for (const OptimizerKind kind : {OptimizerKind::kAdam, OptimizerKind::kSgd}) {
      Parameters from = parameters(precision, kind);
      Parameters to({.rows = kRows, .cols = kCols, .with_bias = true}, precision, kind, 1);
      std::vector<float> gradient = random_row(kCols, 99);
      from.update(1, gradient.data(), 0.3f, {o, corrections, 0, 0.01f});
      const auto source = from.arrays(), target = to.arrays();
      ASSERT_EQ(source.size(), kind == OptimizerKind::kAdam ? 7u : 5u);
      for (size_t a = 0; a < source.size(); ++a) {
        EXPECT_NE(source[a].packed(), target[a].packed()) << source[a].name;
        target[a].unpack(source[a].packed());
        EXPECT_EQ(source[a].packed(), target[a].packed()) << source[a].name;
      }
      // The same state continues in the same way.
      std::vector<float> again = gradient;
      from.update(1, gradient.data(), 0.3f, {o, corrections, 1, 0.01f});
      to.update(1, again.data(), 0.3f, {o, corrections, 1, 0.01f});
      for (size_t a = 0; a < source.size(); ++a) EXPECT_EQ(source[a].packed(), target[a].packed());
    }
}

TEST(Parameters, RmspropIsAdamWithoutAMean) {
  for (const bool row_clocks : {false, true}) {
    const Experiment::Optimizer without{.beta1 = 0, .row_clocks = row_clocks}, any{.row_clocks = row_clocks};
    const AdamCorrections of_adam(without.beta1, without.beta2), of_rmsprop(any.beta1, any.beta2);
    Parameters adam = parameters(Precision::kFp32),
               rmsprop = parameters(Precision::kFp32, OptimizerKind::kRmsprop);
    for (uint64_t step = 0; step < 4; ++step)
      for (const size_t row : {size_t{1}, step % 2}) {
        std::vector<float> gradient = random_row(kCols, 10 * step + row), same = gradient;
        adam.update(row, gradient.data(), 0.3f, {without, of_adam, step, 0.01f});
        rmsprop.update(row, same.data(), 0.3f, {any, of_rmsprop, step, 0.01f});
      }
    for (size_t r = 0; r < kRows; ++r) {
      EXPECT_NEAR(adam.bias(r), rmsprop.bias(r), 1e-6);
      for (size_t c = 0; c < kCols; ++c)
        EXPECT_NEAR(adam.floats().row(r)[c], rmsprop.floats().row(r)[c], 1e-6);
    }
    EXPECT_EQ(adam.memory_bytes() - rmsprop.memory_bytes(), kRows * kCols * sizeof(float));
  }
}

TEST(Parameters, Bf16TakesHalfTheMemory) {
  EXPECT_EQ(parameters(Precision::kFp32).memory_bytes() - parameters(Precision::kBf16).memory_bytes(),
            kRows * kCols * 3 * 2);
}

TEST(Parameters, InitialWeightsHaveTheDeviationsOfTheirLayers) {
  Experiment experiment;
  experiment.model.hidden = {128, 64};
  experiment.modelets = {.hidden_columns = 32, .output_modelets = 2};
  const DataShape shape{.features = 500, .labels = 1000, .train_rows = 100, .labels_per_row = 1};
  ThreadPool pool(1);
  Network network(experiment, shape, partition_model(experiment, shape), true, pool);
  network.initialise();
  for (const auto& modelet : network.modelets()) {
    const LayerKind kind = modelet->spec().kind;
    const double inputs = modelet->spec().inputs, expected = kind == LayerKind::kInput ? 0.1
                                                             : kind == LayerKind::kHidden
                                                                 ? std::sqrt(2 / inputs)
                                                                 : std::sqrt(1 / inputs);
    const Parameters& parameters = modelet->parameters();
    const size_t rows = parameters.rows() - (kind == LayerKind::kInput ? 1 : 0);  // without the bias
    double sum = 0, squares = 0, largest = 0;
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < parameters.cols(); ++c) {
        const double weight = parameters.floats().row(r)[c];
        sum += weight;
        squares += weight * weight;
        largest = std::max(largest, std::abs(weight));
      }
    const auto count = static_cast<double>(rows * parameters.cols());
    EXPECT_NEAR(sum / count, 0, 0.1 * expected);
    EXPECT_NEAR(std::sqrt(squares / count), expected, 0.05 * expected);
    EXPECT_LE(largest, 1.7321 * expected);
  }
}

}  // namespace
}  // namespace modelet::shard
