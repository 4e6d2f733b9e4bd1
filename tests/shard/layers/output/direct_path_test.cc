// The direct path from features to labels compared with plain C++: pairs, what they add to the logits of a
// step and of scoring, and priors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/experiment/partition.h"
#include "shard/data/batch/dropout.h"
#include "shard/data/batch/split.h"
#include "shard/data/pairs/own_items.h"
#include "shard/data/store/prepared.h"
#include "shard/inference/evaluation.h"
#include "shard/layers/network.h"
#include "shard/layers/output/active_set.h"
#include "shard/layers/scoring/feature_index.h"
#include "shard/layers/scoring/scoring.h"
#include "shard/synth/synth.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using Vector = std::map<uint32_t, double>;

double product(const Vector& a, const Vector& b) {
  double sum = 0;
  for (const auto& [feature, value] : a)
    if (const auto found = b.find(feature); found != b.end()) sum += value * found->second;
  return sum;
}
void add(Vector& to, const Vector& x, double factor) {
  for (const auto& [feature, value] : x) to[feature] += factor * value;
}
Vector vector_of(const Sample& sample) {
  Vector vector;
  for (size_t i = 0; i < sample.features.size(); ++i) vector[sample.features[i]] = sample.values[i];
  return vector;
}
// The `most` largest values.
Vector largest(const Vector& sums, size_t most) {
  std::vector<std::pair<double, uint32_t>> order;
  for (const auto& [feature, value] : sums) order.emplace_back(-std::abs(value), feature);
  std::ranges::sort(order);
  Vector kept;
  for (size_t i = 0; i < std::min(most, order.size()); ++i) kept[order[i].second] = sums.at(order[i].second);
  return kept;
}

class DirectPathTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  DirectPathTest() {
    write_synth({.rows_train = 150,
                 .rows_test = 40,
                 .features = 90,
                 .labels = 70,
                 .features_per_row = 9,
                 .labels_per_row = 2},
                folder_.path(), false);
    train_ = Dataset::open(folder_ / "train.mlt");
    test_ = Dataset::open(folder_ / "test.mlt");
    experiment_.model.hidden = {16};
    experiment_.model.loss = Loss::kSigmoid;
    experiment_.model.centroids = true;
    experiment_.model.centroid_pairs = GetParam();
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 3};
    experiment_.sampling.uniform = 20;
    shape_ = describe_shape(train_, test_);
    partition_ = partition_model(experiment_, shape_);
    network_ = std::make_unique<Network>(experiment_, shape_, partition_, true, pool_);
    network_->initialise();
    for (uint32_t row = 0; row < train_.rows(); ++row)
      if (row % 10 != 3) rows_.push_back(row);  // the other rows are held out
    network_->build_pairs(train_, rows_);
    for (Modelet* modelet : network_->output().modelets()) {
      Direct& direct = *modelet->direct();
      for (size_t c = 0; c < kFrequencyClasses; ++c)
        direct.scales.floats().row(0)[c] = 1.5f + static_cast<float>(c);
    }
  }

  // The sums of the training samples of a label.
  Vector sums_of(uint32_t label) const {
    Vector sums;
    for (const uint32_t row : rows_)
      for (const uint32_t of_row : train_.sample(row).labels)
        if (of_row == label) add(sums, vector_of(train_.sample(row)), 1);
    return GetParam() > 0 ? largest(sums, GetParam()) : sums;
  }
  uint32_t positives(uint32_t label) const {
    uint32_t count = 0;
    for (const uint32_t row : rows_)
      count += static_cast<uint32_t>(std::ranges::count(train_.sample(row).labels, label));
    return count;
  }
  // The modelet and row of the neuron of a label.
  std::pair<const Modelet*, size_t> place(uint32_t label) {
    const uint32_t neuron = network_->spread().neuron(label);
    for (const Modelet* modelet : network_->output().modelets())
      if (neuron >= modelet->spec().begin && neuron < modelet->spec().end)
        return {modelet, neuron - modelet->spec().begin};
    return {nullptr, 0};
  }
  double scale(uint32_t samples) {
    return network_->output().modelets()[0]->direct()->scale(frequency_class(samples));
  }
  // What a training step adds. The sample is removed from the sums of its own labels, as far as the label has
  // its features.
  double trained(uint32_t label, const Vector& x) {
    Vector rest = sums_of(label), own;
    for (const auto& [feature, value] : x)
      if (rest.contains(feature)) own[feature] = value;
    add(rest, own, -1);
    const double lengths = std::sqrt(product(rest, rest) * product(x, x));
    const double others = positives(label) > 1 && lengths > 1e-4 ? product(x, rest) / lengths : 0;
    return scale(positives(label) - 1) * others;
  }

  testing::TemporaryFolder folder_;
  Dataset train_, test_;
  Experiment experiment_;
  DataShape shape_;
  std::vector<ModeletSpec> partition_;
  ThreadPool pool_{2};
  std::unique_ptr<Network> network_;
  std::vector<uint32_t> rows_;
};

TEST_P(DirectPathTest, PairsAreWhatOccursTogetherInTraining) {
  size_t seen_once = 0;
  for (uint32_t label = 0; label < shape_.labels; ++label) {
    const auto [modelet, row] = place(label);
    const Pairs& pairs = modelet->direct()->pairs;
    const Vector expected = sums_of(label);
    const LabelPairs sums = pairs.sums(row);
    ASSERT_EQ(sums.features.size(), expected.size()) << "label " << label;
    size_t i = 0;
    for (const auto& [feature, value] : expected) {
      EXPECT_EQ(sums.features[i], feature);
      EXPECT_NEAR(sums.values[i++], value, 1e-5);
    }
    EXPECT_EQ(pairs.positives(row), positives(label));
    EXPECT_NEAR(pairs.norm(row), std::sqrt(product(expected, expected)), 1e-4);
    seen_once += positives(label) == 1 ? 1 : 0;
  }
  EXPECT_GT(seen_once, 0u) << "no rare labels";
}

TEST_P(DirectPathTest, PairsOfFurtherSamplesAreAdded) {
  constexpr float kFitted = 3;
  const std::span<const uint32_t> rows(rows_);
  size_t more = 0;
  for (const Modelet* modelet : network_->output().modelets()) {
    const Pairs& all = modelet->direct()->pairs;
    Pairs both(GetParam(), modelet->spec().begin, all.neurons());
    both.build(train_, rows.first(90), network_->spread(), pool_);
    const Classifiers fitted{AlignedVector<float>(both.size(), kFitted),
                             std::vector<float>(both.neurons(), kFitted)};
    const Pairs before = both.add(train_, rows.subspan(90), network_->spread(), pool_);
    const Classifiers moved = fitted.moved(before, both);
    for (size_t row = 0; row < all.neurons(); ++row) {
      const LabelPairs sums = both.sums(row);
      EXPECT_EQ(both.positives(row), all.positives(row));
      if (GetParam() == 0) {
        ASSERT_TRUE(std::ranges::equal(both.features(row), all.features(row)));
        for (size_t i = 0; i < sums.features.size(); ++i)
          EXPECT_NEAR(sums.values[i], all.sums(row).values[i], 1e-5);
        EXPECT_NEAR(both.norm(row), all.norm(row), 1e-4);
        more += both.features(row).size() - before.features(row).size();
      } else {
        EXPECT_LE(both.features(row).size(), GetParam());
      }
      for (size_t i = 0; i < sums.features.size(); ++i)
        EXPECT_EQ(moved.weights[both.offsets()[row] + i],
                  std::ranges::count(before.features(row), sums.features[i]) > 0 ? kFitted : 0);
      EXPECT_EQ(moved.biases[row], kFitted);
    }
  }
  EXPECT_EQ(more > 0, GetParam() == 0);
}

// The hidden weights are zero, so the logits are what the direct path adds.
TEST_P(DirectPathTest, AStepTakesASampleOutOfItsOwnLabels) {
  for (Modelet* modelet : network_->output().modelets()) {
    const std::vector<float> zero(16);
    for (size_t r = 0; r < modelet->parameters().rows(); ++r) modelet->parameters().set_row(r, zero.data());
    for (size_t r = 0; r < modelet->parameters().rows(); ++r) modelet->parameters().bias(r) = 0;
  }
  Batch batch;
  batch.assign(train_, std::span(rows_).first(40), true);
  OutputLayer& output = network_->output();
  const AlignedVector<float> hidden(40 * 16, 1.0f), transposed(16 * 48, 1.0f);
  output.select(batch, {hidden.data(), 40, 16, 16}, 0);
  output.gather();
  output.forward({hidden.data(), 40, 16, 16}, {transposed.data(), 16, 48, 48}, {0, 40});
  const ConstMatrix statistics = output.statistics();
  ASSERT_EQ(statistics.rows, kStatistics + kScaleStatistics);
  // With the sigmoid loss, the statistics of a sample are the sum of softplus over the active labels, and the
  // sum of the logits of its own labels.
  for (size_t s = 0; s < 40; ++s) {
    const Sample sample = train_.sample(rows_[s]);
    double own = 0;
    std::array<double, kFrequencyClasses> cosines{};
    for (const uint32_t label : sample.labels) {
      const double logit = trained(label, vector_of(sample));
      own += logit;
      cosines[frequency_class(positives(label) - 1)] += logit / scale(positives(label) - 1);
    }
    EXPECT_NEAR(statistics.row(kTarget)[s], own, 2e-3) << "sample " << s;
    for (size_t c = 0; c < kFrequencyClasses; ++c)
      EXPECT_NEAR(statistics.row(kStatistics + kFrequencyClasses + c)[s], cosines[c], 1e-3);
  }
}

// More neurons in a modelet than are scored together, and labels without samples between the others.
TEST_P(DirectPathTest, OnlyLabelsOfTrainingSamplesAreProposed) {
  const size_t kLabels = 400;
  write_synth({.rows_train = 150,
               .rows_test = 40,
               .features = 90,
               .labels = kLabels,
               .features_per_row = 9,
               .labels_per_row = 3,
               .zipf = 0.5},
              folder_ / "many", false);
  const Dataset train = Dataset::open(folder_ / "many/train.mlt");
  Batch batch;
  batch.assign(train, all_rows(40), true);
  const size_t columns = padded(batch.size());
  AlignedVector<float> transposed(16 * columns);
  Rng rng(5);
  for (float& value : transposed) value = rng.normal();
  const ConstMatrix hidden{transposed.data(), 16, columns, columns};
  std::vector<uint32_t> counts(kLabels);
  for (uint32_t row = 0; row < train.rows(); ++row)
    for (const uint32_t label : train.sample(row).labels) ++counts[label];
  ASSERT_GT(std::ranges::count(counts, 0u), 50);
  experiment_.modelets.output_modelets = 1;
  for (const auto& [precision, tolerance] :
       {std::pair(Precision::kFp32, 1e-5), std::pair(Precision::kBf16, 0.05)})
    for (const bool excludes : {false, true}) {
      experiment_.model.precision = precision;
      experiment_.model.exclude_own = excludes;
      const DataShape shape = describe_shape(train, train);
      Network network(experiment_, shape, partition_model(experiment_, shape), true, pool_);
      network.initialise();
      network.build_pairs(train, all_rows(train.rows()));
      LabelRanker ranker(network.scoring(), pool_);
      TopK predicted, proposed;
      ranker.rank_dense(hidden, batch.size(), kLabels, predicted, &batch);
      ranker.rank_dense(hidden, batch.size(), kLabels, proposed, &batch, Ranking::kProposals);
      for (size_t s = 0; s < batch.size(); ++s) {
        std::map<uint32_t, float> expected;
        for (size_t i = 0; i < kLabels; ++i)
          if (counts[predicted.labels(s)[i]] > 0) expected[predicted.labels(s)[i]] = predicted.scores(s)[i];
        for (size_t i = 0; i < kLabels; ++i) {
          const uint32_t label = proposed.labels(s)[i];
          ASSERT_EQ(label == TopK::kNoLabel, i >= expected.size());
          if (label == TopK::kNoLabel) continue;
          ASSERT_TRUE(expected.contains(label)) << "label " << label << " has no samples";
          EXPECT_NEAR(proposed.scores(s)[i], expected[label], tolerance);
        }
      }
    }
}

// A sample, and with it a label, may be so short that 1 / length is no finite float.
TEST_P(DirectPathTest, WhatHasHardlyALengthAddsFiniteCosines) {
  PreparedWriter writer(folder_ / "tiny.mlt", shape_.features, shape_.labels, Normalize::kNone);
  writer.add(testing::OwnedSample({1, 2}, {1e-42f, 1e-42f}, {0}).view());
  writer.add(testing::OwnedSample({1, 2}, {3, 4}, {1}).view());
  writer.finish();
  const Dataset tiny = Dataset::open(folder_ / "tiny.mlt");
  network_->build_pairs(tiny, all_rows(tiny.rows()));
  Batch batch;
  batch.assign(tiny, all_rows(tiny.rows()), true);
  BatchFeatures features;
  features.assign(batch, shape_.features);
  EXPECT_EQ(features.inverse_lengths()[0], 0);
  EXPECT_FLOAT_EQ(features.inverse_lengths()[1], 0.2f);
  const FeatureIndex index(network_->scoring());
  for (uint32_t row = 0; row < tiny.rows(); ++row) {
    std::vector<float> scores(shape_.labels);
    index.add_to({tiny.sample(row), nullptr}, scores.data());
    for (const float score : scores) EXPECT_TRUE(std::isfinite(score)) << "sample " << row;
  }
}

// If features are left out, lengths are estimated from the remaining ones, and are right on average.
TEST_P(DirectPathTest, LengthsSurviveDropout) {
  BatchFeatures features;
  Batch batch;
  const std::vector<uint32_t> rows(rows_.begin(), rows_.begin() + 100);
  double ratio = 0;
  for (uint64_t step = 0; step < 40; ++step) {
    batch.assign(train_, rows, true, {.rate = 0.25f, .seed = 1, .step = step});
    features.assign(batch, shape_.features, 0.25f);
    for (size_t s = 0; s < rows.size(); ++s) {
      const Vector x = vector_of(train_.sample(rows[s]));
      if (const double inverse = features.inverse_lengths()[s]; inverse > 0)
        ratio += 1 / (inverse * inverse) / product(x, x) / 4000;
    }
  }
  EXPECT_NEAR(ratio, 1, 0.02);
}

TEST_P(DirectPathTest, TakesNoMoreMemoryThanThePlanSays) {
  for (const Modelet* modelet : network_->output().modelets()) {
    const Pairs& pairs = modelet->direct()->pairs;
    EXPECT_LE(pairs.memory_bytes(), pair_bytes(modelet->spec(), experiment_, shape_) * 1.1);
    EXPECT_GE(pairs.memory_bytes(), pairs.size() * 2 * sizeof(float));
    EXPECT_GE(modelet->memory_bytes(), modelet->parameters().memory_bytes() + pairs.memory_bytes());
  }
}

TEST_P(DirectPathTest, WhatASampleHasGetsNoChanceIfExcluded) {
  experiment_.model.exclude_own = true;
  Network network(experiment_, shape_, partition_, true, pool_);
  network.initialise();
  network.build_pairs(train_, rows_);
  Batch batch;
  batch.assign(test_, all_rows(test_.rows()), true);
  const size_t columns = padded(batch.size());
  const AlignedVector<float> transposed(16 * columns, 0.0f);
  TopK best;
  LabelRanker(network.scoring(), pool_)
      .rank_dense({transposed.data(), 16, columns, columns}, batch.size(), shape_.labels, best, &batch);
  for (size_t s = 0; s < batch.size(); ++s) {
    const Vector x = vector_of(test_.sample(s));
    for (size_t i = 0; i < shape_.labels; ++i)
      EXPECT_EQ(best.scores(s)[i] < -20, x.contains(best.labels(s)[i])) << "sample " << s;
  }
}

TEST_P(DirectPathTest, AnExcludedItemMayBeALabelOfItsSample) {
  experiment_.model.exclude_own = true;
  PreparedWriter writer(folder_ / "both.mlt", shape_.features, shape_.labels, Normalize::kNone);
  writer.add(testing::OwnedSample({1, 2}, {1e-6f, 1}, {1, 3}).view());
  writer.finish();
  const Dataset both = Dataset::open(folder_ / "both.mlt");
  Network network(experiment_, shape_, partition_, true, pool_);
  network.initialise();
  network.build_pairs(both, all_rows(both.rows()));
  Batch batch;
  batch.assign(both, all_rows(1), true);
  OutputLayer& output = network.output();
  const AlignedVector<float> hidden(16, 0.0f), transposed(16 * 16, 0.0f);
  output.select(batch, {hidden.data(), 1, 16, 16}, 0);
  output.gather();
  output.forward({hidden.data(), 1, 16, 16}, {transposed.data(), 16, 16, 16}, {0, 1});
  EXPECT_GT(output.statistics().row(kTarget)[0], -100) << "the sum of the logits of labels 1 and 3";
  TopK best;
  LabelRanker(network.scoring(), pool_)
      .rank_dense({transposed.data(), 16, 16, 16}, 1, shape_.labels, best, &batch);
  EXPECT_THAT(best.labels(0).last(2), ::testing::UnorderedElementsAre(1, 2)) << "predicted it is not";
  EXPECT_LT(best.scores(0)[shape_.labels - 2], -1000);
}

// In training and in scoring, for labels of the sample and for others.
TEST_P(DirectPathTest, OwnItemsGetTheirWeight) {
  PreparedWriter writer(folder_ / "own.mlt", shape_.features, shape_.labels, Normalize::kNone);
  writer.add(testing::OwnedSample({1, 2}, {0.5f, 2}, {1, 3}).view());
  writer.finish();
  const Dataset own = Dataset::open(folder_ / "own.mlt");
  Batch batch;
  batch.assign(own, all_rows(1), true);
  const AlignedVector<float> hidden(16, 0.0f), transposed(16 * 16, 0.0f);
  std::array<float, 2> of_targets{};
  std::array<TopK, 2> best;
  for (const size_t favoured : {0, 1}) {
    experiment_.model.own_weight = favoured == 0 ? 0 : 3;
    Network network(experiment_, shape_, partition_, true, pool_);
    network.initialise();
    network.build_pairs(own, all_rows(own.rows()));
    OutputLayer& output = network.output();
    output.select(batch, {hidden.data(), 1, 16, 16}, 0);
    output.gather();
    output.forward({hidden.data(), 1, 16, 16}, {transposed.data(), 16, 16, 16}, {0, 1});
    of_targets[favoured] = output.statistics().row(kTarget)[0];
    LabelRanker(network.scoring(), pool_)
        .rank_dense({transposed.data(), 16, 16, 16}, 1, shape_.labels, best[favoured], &batch);
  }
  EXPECT_NEAR(of_targets[1] - of_targets[0], 3 * 0.5, 1e-4) << "label 1; the sample does not have item 3";
  std::map<uint32_t, float> without;
  for (size_t i = 0; i < shape_.labels; ++i) without[best[0].labels(0)[i]] = best[0].scores(0)[i];
  for (size_t i = 0; i < shape_.labels; ++i) {
    const uint32_t label = best[1].labels(0)[i];
    EXPECT_NEAR(best[1].scores(0)[i] - without[label], label == 1 ? 1.5 : label == 2 ? 6 : 0, 1e-4) << label;
  }
}

INSTANTIATE_TEST_SUITE_P(PairsOfALabel, DirectPathTest, ::testing::Values(0u, 5u));

// ---- Priors

struct PriorCase {
  SamplingMode mode;
  uint32_t uniform;
  float sparsity;
};
class PriorTest : public ::testing::TestWithParam<PriorCase> {};

// Compares with counting in how many of many steps a neuron is active.
TEST_P(PriorTest, IsTheLogarithmOfTheChanceToBeActive) {
  testing::TemporaryFolder folder;
  write_synth({.rows_train = 400,
               .rows_test = 1,
               .features = 50,
               .labels = 100,
               .features_per_row = 3,
               .labels_per_row = 2},
              folder.path(), false);
  const Dataset data = Dataset::open(folder / "train.mlt");
  const DataShape shape = describe_shape(data, data);
  Experiment experiment;
  experiment.model.hidden = {16};
  experiment.modelets = {.hidden_columns = 16, .output_modelets = 2};
  experiment.sampling = {
      .mode = GetParam().mode, .uniform = GetParam().uniform, .prior = 0.5f, .sparsity = GetParam().sparsity};
  experiment.train.batch = 16;
  ThreadPool pool(1);
  Network network(experiment, shape, partition_model(experiment, shape), true, pool);
  network.initialise();
  network.set_label_counts(count_labels(data));

  const std::vector<Modelet*>& modelets = network.output().modelets();
  std::vector<ActiveSetSampler> samplers;
  for (const Modelet* modelet : modelets)
    samplers.emplace_back(*modelet, output_options(experiment, shape.labels));
  std::vector<std::vector<double>> active;
  for (const Modelet* modelet : modelets) active.emplace_back(modelet->spec().neurons());
  constexpr uint64_t kSteps = 25 * 400;
  BatchOrder order(all_rows(data.rows()), experiment.train.batch, 1);
  Batch batch;
  BatchLabels labels;
  Queries queries;
  for (uint64_t step = 0; step < kSteps; ++step) {
    batch.assign(data, order.rows(step), false);
    labels.assign(batch, network.spread(), modelets);
    for (size_t m = 0; m < modelets.size(); ++m)
      for (const uint32_t row :
           samplers[m].select(*modelets[m], labels.of(m), 0, {}, queries, step, pool).rows)
        active[m][row] += 1.0 / kSteps;
  }
  double most = 0, least = 1;
  for (size_t m = 0; m < modelets.size(); ++m) {
    const std::vector<float> logs = log_activity(*modelets[m], experiment.sampling, experiment.train, shape);
    for (size_t row = 0; row < logs.size(); ++row) {
      EXPECT_NEAR(std::exp(logs[row]), active[m][row], 0.03 + 0.06 * active[m][row]) << "row " << row;
      EXPECT_FLOAT_EQ(network.scoring().constant({m, row}),
                      modelets[m]->parameters().bias(row) + 0.5f * logs[row]);
      most = std::max(most, active[m][row]);
      least = std::min(least, active[m][row]);
    }
  }
  if (GetParam().mode != SamplingMode::kFull) {
    EXPECT_GT(most, 2 * least) << "nothing to tell apart";
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PriorTest,
                         ::testing::Values(PriorCase{SamplingMode::kUniform, 20, 0},
                                           PriorCase{SamplingMode::kUniform, 20, 0.4f},
                                           PriorCase{SamplingMode::kFull, 20, 0}));

}  // namespace
}  // namespace modelet::shard
