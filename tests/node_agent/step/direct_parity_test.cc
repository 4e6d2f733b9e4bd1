// The direct path from features to labels learns the same on one rank and on several, with any number of
// threads and micro-batches, and any placement.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>

#include "shard/synth/synth.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

constexpr uint64_t kDirectSteps = 20;

class DirectParityTest : public ::testing::TestWithParam<std::tuple<SamplingMode, Loss>> {
 protected:
  DirectParityTest() {
    shard::write_synth(
        {.rows_train = 200, .rows_test = 1, .features = 150, .labels = 120, .features_per_row = 12},
        folder_.path(), false);
    data_ = shard::Dataset::open(folder_ / "train.mlt");
    shape_ = {.features = data_.features(), .labels = data_.labels(), .labels_per_row = 3};
    experiment_.model = {.hidden = {32}, .loss = std::get<1>(GetParam()), .centroids = true};
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 5};
    experiment_.sampling.mode = std::get<0>(GetParam());
    experiment_.sampling.uniform = 30;
    experiment_.exchange.codec = CodecKind::kNone;
    experiment_.train.batch = 64;
    experiment_.train.learning_rate = 0.01f;
    experiment_.train.input_dropout = 0.2f;
    experiment_.optimizer.clip = 0.5f;
  }

  struct Learned {
    std::vector<double> losses;
    std::map<std::string, std::vector<std::byte>> states;
  };
  Learned learn(int size, unsigned threads = 1) const {
    auto ranks = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, size), size, threads);
    build_pairs(ranks, data_);
    auto groups = make_groups(size);
    Learned learned{train(ranks, groups, data_, 0, kDirectSteps), state_of(ranks)};
    std::vector<float> scales;
    for (const auto& rank : ranks)
      for (shard::Modelet* modelet : rank->network.output().modelets()) {
        const float* const own = modelet->direct()->scales.floats().row(0);
        if (scales.empty()) scales.assign(own, own + shard::kFrequencyClasses);
        EXPECT_TRUE(std::equal(scales.begin(), scales.end(), own)) << "ranks disagree on the scales";
      }
    EXPECT_GT(*std::ranges::max_element(scales), *std::ranges::min_element(scales) + 0.1f) << "not learned";
    return learned;
  }

  TemporaryFolder folder_;
  shard::Dataset data_;
  DataShape shape_;
  Experiment experiment_;
};

TEST_P(DirectParityTest, LossesDoNotDependOnRanks) {
  const std::vector<double> alone = learn(1).losses;
  EXPECT_LT(alone.back(), 0.95 * alone.front()) << "nothing is learned";
  for (const int size : {2, 4}) {
    const std::vector<double> losses = learn(size).losses;
    for (size_t s = 0; s < alone.size(); ++s)
      ASSERT_NEAR(losses[s], alone[s], 1e-4 * alone[s]) << "loss of step " << s << " on " << size << " ranks";
  }
}

TEST_P(DirectParityTest, ThreadsAndMicroBatchesChangeNoBit) {
  const Learned alone = learn(1), threads = learn(1, kSeveralThreads);
  EXPECT_EQ(threads.losses, alone.losses);
  EXPECT_EQ(threads.states, alone.states);
  experiment_.exchange.micro_batches = 1;
  const Learned whole = learn(2);
  experiment_.exchange.micro_batches = 3;
  const Learned divided = learn(2);
  EXPECT_EQ(divided.losses, whole.losses);
  EXPECT_EQ(divided.states, whole.states);
}

INSTANTIATE_TEST_SUITE_P(Parity, DirectParityTest,
                         ::testing::Combine(::testing::Values(SamplingMode::kUniform, SamplingMode::kLsh,
                                                              SamplingMode::kFull),
                                            ::testing::ValuesIn(all_values<Loss>())));

}  // namespace
}  // namespace modelet::agent::testing
