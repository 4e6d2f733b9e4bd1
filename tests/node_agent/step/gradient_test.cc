// The gradients that a step applies, compared with finite differences of the loss that it reports, for every
// parameter of a small model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

constexpr uint64_t kFeatures = 24, kLabels = 20, kStep = 7;
// Each sample has a feature of its own, and a few of the others.
std::vector<OwnedSample> random_samples(size_t count) {
  std::vector<OwnedSample> samples;
  Rng rng(11);
  for (uint32_t s = 0; s < count; ++s) {
    OwnedSample sample({s}, {1.0f}, {});
    for (auto f = static_cast<uint32_t>(count); f < kFeatures; ++f)
      if (rng.below(3) == 0) {
        sample.features.push_back(f);
        sample.values.push_back(rng.normal());
      }
    for (uint32_t label = 0; label < kLabels; ++label)
      if (rng.below(8) == 0) sample.labels.push_back(label);
    samples.push_back(std::move(sample));
  }
  samples[3].labels.clear();
  return samples;
}

struct Case {
  Loss loss;
  SamplingMode mode;
  std::vector<uint32_t> hidden;
  float dropout = 0;  // of hidden activations
  bool direct = false;  // centroids
  uint32_t group = 0;   // samples that share an active set
  size_t samples = 10;
};

class GradientTest : public ::testing::TestWithParam<Case> {
 protected:
  GradientTest() : data_(write_samples(folder_, "data.mlt", random_samples(GetParam().samples), kFeatures, kLabels)) {
    experiment_.model = {.hidden = GetParam().hidden, .loss = GetParam().loss};
    experiment_.model.centroids = GetParam().direct;
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 3};
    experiment_.sampling.mode = GetParam().mode;
    experiment_.sampling.uniform = 5;
    experiment_.sampling.group = GetParam().group;
    experiment_.train.hidden_dropout = GetParam().dropout;
    // Nearly all rows share a bucket with the query in some table. So the best rows of all are retrieved, and
    // small changes of the weights do not change which ones these are.
    experiment_.sampling.tables = 16;
    experiment_.sampling.bits = 1;
    experiment_.sampling.bucket = 64;
    experiment_.sampling.top = 3;
    experiment_.optimizer = {.kind = OptimizerKind::kSgd, .momentum = 0};
    const DataShape shape{.features = kFeatures, .labels = kLabels};
    rank_ = std::make_unique<Rank>(experiment_, shape, round_robin(experiment_, shape, 1), 0, 1, 1);
    rank_->network.build_pairs(data_, shard::all_rows(data_.rows()));
    set_weights();
    set_direct();
    batch_.assign(data_, shard::all_rows(data_.rows()), true);
  }

  // Sets the weights so that no pre-activation of a hidden neuron is near zero, where the loss has a kink.
  // For this, the biases are large, and in the input layer the weights of the own feature of each sample; the
  // other weights are small.
  void set_weights() {
    Rng rng(5);
    for (const auto& modelet : rank_->network.modelets()) {
      const LayerKind kind = modelet->spec().kind;
      const Matrix weights = modelet->parameters().floats();
      const auto large = [&] { return rng.below(2) == 0 ? 2.0f : -2.0f; };
      for (size_t r = 0; r < weights.rows; ++r)
        for (size_t c = 0; c < weights.cols; ++c) {
          const bool own_feature = kind == LayerKind::kInput && r < data_.rows();
          weights.row(r)[c] =
              own_feature ? large() : (kind == LayerKind::kOutput ? 0.3f : 0.05f) * rng.normal();
        }
      shard::Parameters& p = modelet->parameters();
      for (size_t r = 0; p.has_bias() && r < p.rows(); ++r)
        p.bias(r) = kind == LayerKind::kHidden ? large() : 0.3f * rng.normal();
    }
  }

  // Sets the scales of the direct path to values that differ from their initial ones. They are read from the
  // first modelet.
  void set_direct() {
    for (shard::Modelet* modelet : rank_->network.output().modelets())
      if (shard::Direct* direct = modelet->direct())
        for (size_t c = 0; c < shard::kFrequencyClasses; ++c)
          direct->scales.floats().row(0)[c] = 1 + 0.5f * static_cast<float>(c);
  }

  // Runs always the same step, each time with a new group, because a group does a step only once.
  double step(float learning_rate) {
    const auto group = comm::make_solo_group();
    TrainingStep step(rank_->network, rank_->sharding, *group);
    return step.run(batch_, kStep, learning_rate, false).loss;
  }
  double loss() { return step(0); }  // a rate of zero changes no weight

  // Every weight and bias of the model with its kind.
  struct Parameter {
    float* value;
    std::string kind;
    float rate = 1;  // its learning rate as a multiple of that of the step
  };
  std::vector<Parameter> parameters() {
    const char* kinds[] = {"input", "hidden", "output"};
    std::vector<Parameter> found;
    for (const auto& modelet : rank_->network.modelets()) {
      const LayerKind kind = modelet->spec().kind;
      const std::string name = kinds[static_cast<int>(kind)];
      const Matrix weights = modelet->parameters().floats();
      for (size_t r = 0; r < weights.rows; ++r) {
        const bool bias = kind == LayerKind::kInput && r + 1 == weights.rows;
        for (size_t c = 0; c < weights.cols; ++c)
          found.push_back({weights.row(r) + c, bias ? "input bias" : name});
      }
      shard::Parameters& p = modelet->parameters();
      for (size_t r = 0; p.has_bias() && r < p.rows(); ++r) found.push_back({&p.bias(r), name + " bias"});
    }
    for (shard::Modelet* modelet : rank_->network.output().modelets()) {
      shard::Direct* const direct = modelet->direct();
      if (direct == nullptr) continue;
      for (size_t c = 0; c < shard::kFrequencyClasses && modelet->spec().begin == 0; ++c)
        found.push_back({direct->scales.floats().row(0) + c, "scale", shard::kScaleRate});
    }
    return found;
  }

  TemporaryFolder folder_;
  shard::Dataset data_;
  Experiment experiment_;
  std::unique_ptr<Rank> rank_;
  shard::Batch batch_;
};

TEST_P(GradientTest, EqualsFiniteDifferences) {
  // The error has two parts: the rounding of the loss, about 1e-6, divided by the width, and the third
  // derivative of the loss times the square of the width. Both stay below the tolerance.
  constexpr float kWidth = 0.02f;
  constexpr double kTolerance = 3e-4;
  const std::vector<Parameter> all = parameters();
  std::vector<float> before;
  for (const Parameter& p : all) before.push_back(*p.value);
  loss();  // the first step makes the projections that later steps use
  step(1);
  std::vector<double> gradient;
  for (size_t i = 0; i < all.size(); ++i)
    gradient.push_back((double{before[i]} - *all[i].value) / double{all[i].rate});
  for (size_t i = 0; i < all.size(); ++i) *all[i].value = before[i];

  std::map<std::string, double> largest;
  for (size_t i = 0; i < all.size(); ++i) {
    *all[i].value = before[i] + kWidth;
    const double above = loss();
    *all[i].value = before[i] - kWidth;
    const double below = loss();
    *all[i].value = before[i];
    ASSERT_NEAR(gradient[i], (above - below) / (2 * kWidth), kTolerance * (1 + std::abs(gradient[i])))
        << all[i].kind << ", parameter " << i;
    largest[all[i].kind] = std::max(largest[all[i].kind], std::abs(gradient[i]));
  }
  EXPECT_EQ(largest.size(), (GetParam().hidden.size() == 1 ? 4u : 6u) + (GetParam().direct ? 1u : 0u));
  for (const auto& [kind, value] : largest)
    EXPECT_GT(value, 30 * kTolerance) << kind << ": the gradient is trivial";
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Loss loss : all_values<Loss>()) {
    all.push_back({loss, SamplingMode::kFull, {32}});
    all.push_back({loss, SamplingMode::kFull, {16, 32}});
    all.push_back({loss, SamplingMode::kFull, {16, 32}, 0.3f});
    all.push_back({loss, SamplingMode::kUniform, {32}, 0.3f});
    for (const SamplingMode mode : all_values<SamplingMode>()) all.push_back({loss, mode, {16}});
  }
  for (const Loss loss : all_values<Loss>())
    for (const SamplingMode mode : {SamplingMode::kFull, SamplingMode::kUniform, SamplingMode::kLsh})
      all.push_back({.loss = loss, .mode = mode, .hidden = {16}, .direct = true});
  for (const Loss loss : all_values<Loss>())
    for (const bool direct : {false, true})
      all.push_back({.loss = loss,
                     .mode = SamplingMode::kUniform,
                     .hidden = {16},
                     .direct = direct,
                     .group = 16,
                     .samples = 20});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cases, GradientTest, ::testing::ValuesIn(cases()));

}  // namespace
}  // namespace modelet::agent::testing
