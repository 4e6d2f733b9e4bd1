// What an evaluation takes from other ranks.
#include "node_agent/train/evaluation/evaluator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

using ::testing::HasSubstr;

// The second rank has a model of more labels, as a node might that is not what it says.
TEST(Evaluator, RefusesLabelsThatDoNotExist) {
  constexpr uint64_t kFeatures = 20, kLabels = 12;
  const TemporaryFolder folder;
  const shard::Dataset data = write_samples(
      folder, "data.mlt", {OwnedSample({1, 2}, {1, 1}, {3}), OwnedSample({4}, {1}, {5})}, kFeatures, kLabels);
  Experiment experiment;
  experiment.model.hidden = {32};
  experiment.modelets = {.hidden_columns = 16, .output_modelets = 2};
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const uint64_t labels : {kLabels, 1000 * kLabels}) {
    const DataShape shape{.features = kFeatures, .labels = labels, .train_rows = 2, .labels_per_row = 1};
    ranks.push_back(std::make_unique<Rank>(experiment, shape, round_robin(experiment, shape, 2),
                                           static_cast<int>(ranks.size()), 2, 1));
  }
  auto groups = make_groups(2);
  std::string error;
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    Rank& rank = *ranks[static_cast<size_t>(group.rank())];
    Evaluator evaluator(rank.network, rank.sharding, group);
    try {
      evaluator.predict(data, shard::all_rows(2), 3, {}, [](const shard::Batch&, const shard::TopK&) {});
    } catch (const FormatError& refused) {
      error = refused.what();
    }
  });
  EXPECT_THAT(error, HasSubstr("sent the score of a label that does not exist"));
}

}  // namespace
}  // namespace modelet::agent::testing
