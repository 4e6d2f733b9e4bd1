// How logits become scores, compared with the formulas in plain C++.
#include "shard/layers/scoring/scoring.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/array/padding.h"
#include "base/experiment/partition.h"
#include "base/rng.h"
#include "shard/inference/evaluation.h"
#include "shard/layers/network.h"

namespace modelet::shard {
namespace {

TEST(ScoringTest, TrustGrowsWithTheLogarithmOfSamples) {
  EXPECT_FLOAT_EQ(trust(1, 0.25f), 0.25f);
  EXPECT_FLOAT_EQ(trust(0, 0.25f), 0.25f) << "as little as of one";
  EXPECT_NEAR(trust(10, 0.25f), 0.625, 1e-6);
  EXPECT_FLOAT_EQ(trust(100, 0.25f), 1);
  EXPECT_FLOAT_EQ(trust(5000, 0.25f), 1);
  EXPECT_FLOAT_EQ(trust(1, 1), 1);
}

// The scores and logits [labels][samples] of all labels of a small network, for random activations.
struct Scored {
  std::vector<std::vector<double>> scores, logits;
  std::vector<double> priors;  // log chances, whole
};
Scored score(const Experiment& experiment, const std::vector<uint32_t>& counts, bool pairs = false) {
  constexpr size_t kSamples = 20, kWidth = 16;
  const DataShape shape{.features = 10, .labels = counts.size(), .train_rows = 6000, .labels_per_row = 1};
  ThreadPool pool(1);
  Network network(experiment, shape, partition_model(experiment, shape), true, pool);
  network.initialise();
  network.set_label_counts(counts);
  Rng rng(7);
  const size_t columns = padded(kSamples);
  AlignedVector<float> transposed(kWidth * columns, 0.0f);
  for (size_t c = 0; c < kWidth; ++c)
    for (size_t s = 0; s < kSamples; ++s) transposed[c * columns + s] = rng.normal();
  LabelRanker ranker(network.scoring(), pool, pairs);
  std::vector<float> scores(kSamples * counts.size());
  ranker.score_dense({transposed.data(), kWidth, columns, columns}, kSamples, scores.data(), nullptr);
  Scored scored;
  scored.scores.assign(counts.size(), std::vector<double>(kSamples));
  scored.logits = scored.scores;
  scored.priors.resize(counts.size());
  for (Modelet* modelet : network.output().modelets()) {
    const std::vector<float> logs = log_activity(*modelet, experiment.sampling, experiment.train, shape);
    for (size_t r = 0; r < modelet->parameters().rows(); ++r) {
      const uint32_t label = network.spread().label(static_cast<uint32_t>(modelet->spec().begin + r));
      scored.priors[label] = logs[r];
      for (size_t s = 0; s < kSamples; ++s) {
        std::vector<float> x(kWidth);
        for (size_t c = 0; c < kWidth; ++c) x[c] = transposed[c * columns + s];
        scored.logits[label][s] = modelet->parameters().logit(r, x.data());
        scored.scores[label][s] = scores[s * counts.size() + label];
      }
    }
  }
  return scored;
}

const std::vector<uint32_t> kCounts = {0, 1, 1, 2, 3, 5, 8, 13, 40, 99, 100, 101, 700, 5000};

Experiment small_experiment() {
  Experiment experiment;
  experiment.model.hidden = {16};
  experiment.model.loss = Loss::kSigmoid;
  experiment.modelets = {.hidden_columns = 16, .output_modelets = 2};
  experiment.sampling = {.mode = SamplingMode::kUniform, .uniform = 4};
  return experiment;
}

// If samples draw labels of their own, a label is active for a sample that has
// it or draws it: the chance is counts / 6,000 samples and 4 draws of 14 labels.
TEST(ScoringTest, PriorsAreThoseOfTheSamplingMode) {
  Experiment experiment = small_experiment();
  experiment.sampling.prior = 1;
  experiment.sampling.mode = SamplingMode::kLshPerSample;
  const Scored scored = score(experiment, kCounts);
  for (size_t label = 0; label < kCounts.size(); ++label) {
    const double has = kCounts[label] / 6000.0;
    EXPECT_NEAR(std::exp(scored.priors[label]), has + (1 - has) * 4 / 14, 0.05) << label;
  }
  experiment.sampling.mode = SamplingMode::kFull;
  for (const double prior : score(experiment, kCounts).priors) EXPECT_EQ(prior, 0);
}

TEST(ScoringTest, LogitsOfRareLabelsArePulledToDoubt) {
  Experiment experiment = small_experiment();
  for (const float prior : {0.0f, 0.9f}) {
    experiment.sampling.prior = prior;
    experiment.model.rare_trust = 0.25f;
    const Scored scored = score(experiment, kCounts);
    for (size_t label = 0; label < kCounts.size(); ++label) {
      const double seen =
          std::min(1.0, std::log(std::max(1.0, static_cast<double>(kCounts[label]))) / std::log(100.0));
      const double left = 0.25 + 0.75 * seen;
      for (size_t s = 0; s < scored.scores[label].size(); ++s) {
        const double logit = scored.logits[label][s] + double{prior} * scored.priors[label];
        EXPECT_NEAR(scored.scores[label][s], -2.5 + left * (logit + 2.5), 1e-4) << "label " << label;
      }
    }
  }
}

TEST(ScoringTest, WithoutTrustAndPriorScoresAreLogits) {
  Experiment experiment = small_experiment();
  // Activations are at most 4 or so, weights 1, and 16 of each are rounded by at most 1/512 of their size.
  constexpr double kRounded = 0.02, kExact = 1e-5;
  for (const Precision precision : {Precision::kFp32, Precision::kBf16})
    for (const bool pairs : {false, true}) {
      experiment.model.precision = precision;
      const double tolerance = precision == Precision::kBf16 && pairs ? kRounded : kExact;
      const Scored scored = score(experiment, kCounts, pairs);
      for (size_t label = 0; label < kCounts.size(); ++label)
        for (size_t s = 0; s < scored.scores[label].size(); ++s)
          EXPECT_NEAR(scored.scores[label][s], scored.logits[label][s], tolerance);
    }
}

}  // namespace
}  // namespace modelet::shard
