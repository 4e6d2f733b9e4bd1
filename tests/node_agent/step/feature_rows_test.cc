// A network with rows only for the features that occur learns, to the bit, what one with rows for all features does.
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <vector>

#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

constexpr uint64_t kDeclared = 40'000, kLabelsOfRows = 50, kStepsOfRows = 12;

struct RowsCase {
  Precision precision;
  OptimizerKind optimizer;
  float clip;
};

class FeatureRowsTest : public ::testing::TestWithParam<RowsCase> {
 protected:
  // Features that occur lie far apart.
  static std::vector<OwnedSample> samples(uint32_t first_feature) {
    std::vector<OwnedSample> samples;
    for (uint32_t row = 0; row < 120; ++row) {
      Rng rng(9, {row});
      OwnedSample sample;
      for (uint32_t feature = first_feature + rng.below(900); feature < kDeclared;
           feature += 1 + rng.below(9000)) {
        sample.features.push_back(feature - feature % 30);
        sample.values.push_back(rng.uniform() - 0.3f);
        feature += 30;
      }
      sample.labels = {row % uint32_t{kLabelsOfRows}};
      samples.push_back(std::move(sample));
    }
    return samples;
  }

  static Experiment experiment() {
    Experiment experiment;
    experiment.model.hidden = {32};
    experiment.model.precision = GetParam().precision;
    experiment.optimizer.kind = GetParam().optimizer;
    experiment.optimizer.clip = GetParam().clip;
    experiment.modelets = {.hidden_columns = 16, .output_modelets = 2};
    experiment.sampling.uniform = 20;
    experiment.train.batch = 16;
    experiment.exchange.codec = CodecKind::kNone;
    return experiment;
  }

  struct Trained {
    Trained(const shard::Dataset& data, shard::FeatureRows features)
        : shape{.features = kDeclared, .labels = kLabelsOfRows, .labels_per_row = 1},
          sharding(partition(features), std::vector<uint32_t>(partition(features).size(), 0), 0, 1),
          network(experiment(), shape, sharding.held(), true, pool, std::move(features)) {
      network.initialise();
      const auto group = comm::make_solo_group();
      TrainingStep step(network, sharding, *group);
      shard::BatchOrder order(shard::all_rows(data.rows()), experiment().train.batch, 1);
      shard::Batch batch;
      for (uint64_t s = 0; s < kStepsOfRows; ++s) {
        batch.assign(data, order.rows(s), true);
        losses.push_back(step.run(batch, s, 0.02f, false).loss);
      }
    }
    std::vector<ModeletSpec> partition(const shard::FeatureRows& features) {
      shape.occurring_features = features.all() ? 0 : features.count();
      return partition_model(experiment(), shape);
    }
    // The activations of some samples.
    std::vector<float> hidden(const shard::Dataset& data) {
      shard::Batch batch;
      batch.assign(data, shard::all_rows(data.rows()), false);
      std::vector<float> out(data.rows() * 32);
      network.input().forward(batch, {0, data.rows()}, {out.data(), data.rows(), 32, 32});
      return out;
    }

    ThreadPool pool{kSeveralThreads};
    DataShape shape;
    Sharding sharding;
    shard::Network network;
    std::vector<double> losses;
  };

  TemporaryFolder folder_;
};

TEST_P(FeatureRowsTest, LearnTheSameToTheBit) {
  const shard::Dataset data = write_samples(folder_, "train.mlt", samples(0), kDeclared, kLabelsOfRows);
  Trained all(data, shard::FeatureRows(kDeclared)), some(data, shard::FeatureRows::of(data));
  const shard::FeatureRows& rows = some.network.features();
  ASSERT_LT(rows.count(), kDeclared / 20);
  EXPECT_LT(some.network.memory_bytes(), all.network.memory_bytes() / 10);
  EXPECT_EQ(some.losses, all.losses);
  EXPECT_EQ(some.hidden(data), all.hidden(data));
  for (size_t m = 0; m < all.network.modelets().size(); ++m) {
    shard::Modelet &of_all = *all.network.modelets()[m], &of_some = *some.network.modelets()[m];
    if (of_all.spec().kind != LayerKind::kInput) {
      EXPECT_EQ(state_of(of_some), state_of(of_all));
      continue;
    }
    const auto expected = of_all.parameters().arrays(), found = of_some.parameters().arrays();
    for (size_t a = 0; a < expected.size(); ++a)
      for (size_t row = 0; row <= rows.count(); ++row) {
        const size_t feature = row < rows.count() ? rows.feature(row) : kDeclared;
        ASSERT_EQ(std::memcmp(found[a].first + row * found[a].stride_bytes,
                              expected[a].first + feature * expected[a].stride_bytes, found[a].row_bytes),
                  0)
            << found[a].name << " of feature " << feature;
      }
  }
}

TEST_P(FeatureRowsTest, FeaturesWithoutRowsAddNothing) {
  const shard::Dataset data = write_samples(folder_, "train.mlt", samples(0), kDeclared, kLabelsOfRows);
  Trained some(data, shard::FeatureRows::of(data));
  std::vector<OwnedSample> known = samples(0), with_others = known;
  for (OwnedSample& sample : with_others) {  // features beyond the last one, and one between
    for (const uint32_t feature : {kDeclared - 2, kDeclared - 1}) {
      if (!sample.features.empty() && sample.features.back() >= feature) continue;
      sample.features.push_back(static_cast<uint32_t>(feature));
      sample.values.push_back(3);
    }
    ASSERT_EQ(some.network.features().row(sample.features.front() + 1), shard::FeatureRows::kNone);
    sample.features.insert(sample.features.begin() + 1, sample.features.front() + 1);
    sample.values.insert(sample.values.begin() + 1, -2);
  }
  EXPECT_EQ(some.hidden(write_samples(folder_, "others.mlt", with_others, kDeclared, kLabelsOfRows)),
            some.hidden(data));
}

INSTANTIATE_TEST_SUITE_P(Kinds, FeatureRowsTest,
                         ::testing::Values(RowsCase{Precision::kFp32, OptimizerKind::kAdam, 0},
                                           RowsCase{Precision::kBf16, OptimizerKind::kAdam, 0.5f},
                                           RowsCase{Precision::kBf16, OptimizerKind::kAdagrad, 0},
                                           RowsCase{Precision::kFp32, OptimizerKind::kSgd, 0}));

}  // namespace
}  // namespace modelet::agent::testing
