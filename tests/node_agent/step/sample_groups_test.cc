// Groups of samples with active sets of their own (sampling.group) are compared with steps in which each group is
// the whole batch, and several ranks and threads with one.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "shard/synth/synth.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

constexpr uint64_t kStep = 5;
constexpr uint32_t kBatch = 72, kGroup = 32;  // two whole groups and a part of one

class SampleGroupsTest : public ::testing::TestWithParam<std::tuple<SamplingMode, Loss, bool>> {
 protected:
  SampleGroupsTest() {
    shard::write_synth(
        {.rows_train = 200, .rows_test = 1, .features = 150, .labels = 120, .features_per_row = 12},
        folder_.path(), false);
    data_ = shard::Dataset::open(folder_ / "train.mlt");
    shape_ = {.features = data_.features(), .labels = data_.labels(), .labels_per_row = 3};
    const auto& [mode, loss, direct] = GetParam();
    experiment_.model = {.hidden = {32, 16}, .loss = loss};
    experiment_.model.centroids = experiment_.model.exclude_own = direct;
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 3};
    experiment_.sampling.mode = mode;
    experiment_.sampling.uniform = 20;  // of 120 labels, so groups have many rows in common
    experiment_.sampling.top = 6;
    experiment_.sampling.group = kGroup;
    experiment_.optimizer = {.kind = OptimizerKind::kSgd, .momentum = 0};
    experiment_.exchange.codec = CodecKind::kNone;
    experiment_.train.batch = kBatch;
  }

  std::vector<std::unique_ptr<Rank>> ranks(int size = 1, unsigned threads = 1) const {
    auto made = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, size), size, threads);
    build_pairs(made, data_);
    return made;
  }

  struct Change {
    double loss = 0;
    std::vector<double> values;  // what a step changes in each parameter
    double length() const {
      return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
    }
  };
  // A step of a new model, at the learning rate 1, with samples [first, first + count) of the data.
  Change step(uint32_t first, uint32_t count) const {
    auto made = ranks();
    shard::Network& network = made[0]->network;
    const std::vector<float> before = parameters(network);
    std::vector<uint32_t> rows(count);
    std::iota(rows.begin(), rows.end(), first);
    shard::Batch batch;
    batch.assign(data_, rows, true, {}, first);
    const auto group = comm::make_solo_group();
    Change change{TrainingStep(network, made[0]->sharding, *group).run(batch, kStep, 1, false).loss, {}};
    const std::vector<float> after = parameters(network);
    for (size_t i = 0; i < after.size(); ++i) change.values.push_back(double{after[i]} - double{before[i]});
    return change;
  }

  // All parameters, those of the direct path as if they learned at the rate of the others.
  static std::vector<float> parameters(shard::Network& network) {
    std::vector<float> all;
    const auto append = [&](shard::Parameters& p, float factor) {
      const Matrix weights = p.floats();
      for (size_t r = 0; r < weights.rows; ++r)
        for (size_t c = 0; c < weights.cols; ++c) all.push_back(factor * weights.row(r)[c]);
      for (size_t r = 0; p.has_bias() && r < p.rows(); ++r) all.push_back(p.bias(r));
    };
    for (const auto& modelet : network.modelets()) append(modelet->parameters(), 1);
    if (shard::Direct* direct = network.output().modelets()[0]->direct())  // all modelets have the same
      append(direct->scales, 1 / shard::kScaleRate);
    return all;
  }

  std::vector<double> losses(int size, unsigned threads = 1) const {
    auto made = ranks(size, threads);
    auto groups = make_groups(size);
    return train(made, groups, data_, 0, 20);
  }

  TemporaryFolder folder_;
  shard::Dataset data_;
  DataShape shape_;
  Experiment experiment_;
};

TEST_P(SampleGroupsTest, EachGroupIsABatch) {
  const Change whole = step(0, kBatch);
  experiment_.sampling.group = 0;
  Change sum{.values = std::vector<double>(whole.values.size())};
  for (uint32_t first = 0; first < kBatch; first += kGroup) {
    const uint32_t count = std::min(kGroup, kBatch - first);
    const Change part = step(first, count);
    const double share = static_cast<double>(count) / kBatch;
    sum.loss += share * part.loss;
    for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += share * part.values[i];
  }
  EXPECT_NEAR(whole.loss, sum.loss, 1e-6 * sum.loss);
  double difference = 0;
  for (size_t i = 0; i < sum.values.size(); ++i)
    difference = std::max(difference, std::abs(whole.values[i] - sum.values[i]));
  EXPECT_LT(difference, 1e-5 * sum.length());
  const Change together = step(0, kBatch);  // as one group
  EXPECT_GT(std::abs(together.loss - whole.loss), 1e-3 * whole.loss) << "all samples share an active set";
}

TEST_P(SampleGroupsTest, TheNormIsThatOfTheSums) {
  const double length = step(0, kBatch).length();
  experiment_.optimizer.clip = static_cast<float>(length / 4);
  EXPECT_NEAR(step(0, kBatch).length(), length / 4, 1e-3 * length);
}

TEST_P(SampleGroupsTest, RanksAndThreadsAgree) {
  experiment_.optimizer = {.clip = 0.5f};
  experiment_.exchange.micro_batches = 3;  // 48, 16 and 8 samples: other ranges than the groups
  experiment_.train.learning_rate = 0.01f;
  const std::vector<double> alone = losses(1);
  EXPECT_EQ(losses(1, kSeveralThreads), alone);
  EXPECT_LT(alone.back(), 0.99 * alone.front()) << "nothing is learned";
  for (const int size : {2, 5}) {  // five ranks: some hold no output modelet
    const std::vector<double> found = losses(size);
    for (size_t s = 0; s < alone.size(); ++s)
      EXPECT_NEAR(found[s], alone[s], 1e-4 * alone[s]) << size << " ranks, step " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, SampleGroupsTest,
                         ::testing::Combine(::testing::Values(SamplingMode::kUniform, SamplingMode::kLsh),
                                            ::testing::ValuesIn(all_values<Loss>()), ::testing::Bool()));

}  // namespace
}  // namespace modelet::agent::testing
