// The logQ correction: over many draws, the sum by which a sampled softmax normalises equals that of the full
// softmax.
#include <gtest/gtest.h>

#include <cmath>

#include "base/experiment/partition.h"
#include "base/rng.h"
#include "shard/layers/output/output_layer.h"

namespace modelet::shard {
namespace {

class LogqTest : public ::testing::TestWithParam<SamplingMode> {
 protected:
  static constexpr size_t kLabels = 300, kWidth = 16, kSamples = 4;

  LogqTest() {
    experiment_.model.hidden = {kWidth};
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 2};
    experiment_.sampling.uniform = 30;
    experiment_.sampling.top = 4;
    experiment_.sampling.common = 16;
    experiment_.sampling.logq = true;
    Rng rng(3);
    hidden_.resize(kSamples * kWidth);
    for (float& h : hidden_) h = rng.uniform();
    transposed_.resize(kWidth * 16);
    for (size_t s = 0; s < kSamples; ++s)
      for (size_t c = 0; c < kWidth; ++c) transposed_[c * 16 + s] = hidden_[s * kWidth + c];
    batch_.offsets.assign(kSamples + 1, 0);
    batch_.label_offsets = {0, 2, 3, 3, 4};
    batch_.labels = {5, 80, 5, 250};
  }

  // For each sample, the mean over `steps` of the sum of exp(logit) over the active neurons.
  std::vector<double> normalisers(SamplingMode mode, uint64_t steps) {
    experiment_.sampling.mode = mode;
    std::vector<std::unique_ptr<Modelet>> modelets;
    std::vector<Modelet*> held;
    for (const ModeletSpec& spec : partition_model(experiment_, {.features = 10, .labels = kLabels})) {
      if (spec.kind != LayerKind::kOutput) continue;
      modelets.push_back(std::make_unique<Modelet>(spec, modelet_options(experiment_, true)));
      modelets.back()->initialise(0);
      held.push_back(modelets.back().get());
    }
    const auto layer = make_output_layer(held, output_options(experiment_, kLabels), spread_, pool_);
    std::vector<double> means(kSamples);
    for (uint64_t step = 0; step < steps; ++step) {
      const ConstMatrix hidden{hidden_.data(), kSamples, kWidth, kWidth};
      layer->select(batch_, hidden, step);
      layer->gather();
      layer->forward(hidden, {transposed_.data(), kWidth, 16, 16}, {0, kSamples});
      const ConstMatrix statistics = layer->statistics();
      for (size_t s = 0; s < kSamples; ++s)
        means[s] += std::exp(double{statistics.row(kReference)[s]}) * double{statistics.row(kSum)[s]} /
                    static_cast<double>(steps);
    }
    return means;
  }

  Experiment experiment_;
  LabelSpread spread_{kLabels, 1};
  ThreadPool pool_{1};
  AlignedVector<float> hidden_, transposed_;
  Batch batch_;
};

TEST_P(LogqTest, DrawsStandForAllThatWereNotDrawn) {
  const std::vector<double> full = normalisers(SamplingMode::kFull, 1),
                            sampled = normalisers(GetParam(), 4000);
  experiment_.sampling.logq = false;
  const std::vector<double> uncorrected = normalisers(GetParam(), 100);
  for (size_t s = 0; s < kSamples; ++s) {
    EXPECT_NEAR(sampled[s] / full[s], 1, 0.01) << "sample " << s;
    EXPECT_LT(uncorrected[s], 0.6 * full[s]) << "sample " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, LogqTest,
                         ::testing::Values(SamplingMode::kUniform, SamplingMode::kLsh,
                                           SamplingMode::kLshPerSample));

}  // namespace
}  // namespace modelet::shard
