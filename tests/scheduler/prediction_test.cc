// What a plan predicts against what is: bytes that a step sends, memory of a modelet.
#include <gtest/gtest.h>

#include <numeric>

#include "base/aligned.h"
#include "scheduler/placement.h"
#include "shard/data/synth.h"
#include "shard/modelet.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

// Only the envelopes vary, by the padding between their fields.
constexpr double kTolerance = 0.01;

struct Case {
  std::string codec;
  Loss loss;
  std::vector<uint32_t> hidden;
  float clip;
  bool leaves_out_zeros = false;
};

void compare(const Case& c) {
  SCOPED_TRACE(c.codec + ", " + std::to_string(c.hidden.size()) + " hidden layers");
  constexpr int kRanks = 3;
  TemporaryFolder folder;
  shard::write_synth(
      {.rows_train = 100, .rows_test = 1, .features = 150, .labels = 120, .features_per_row = 12},
      folder.path(), false);
  const shard::Dataset data = shard::Dataset::open(folder / "train.mlt");
  const DataShape shape{.features = data.features(),
                        .labels = data.labels(),
                        .train_rows = 100,
                        .features_per_row = 12,
                        .labels_per_row = 3};
  Experiment experiment;
  experiment.model = {.hidden = c.hidden, .loss = c.loss};
  experiment.modelets = {.hidden_columns = 16, .output_modelets = 5};
  experiment.train.batch = 24;  // not a multiple of what it is padded to
  experiment.optimizer.clip = c.clip;
  experiment.exchange.codec = c.codec;
  experiment.exchange.micro_batches = 3;
  const std::vector<scheduler::NodeCapacity> nodes(kRanks, {"node", 1, uint64_t{4} << 30, 10, 10});
  const scheduler::Plan plan = scheduler::make_plan(experiment, shape, nodes);

  auto ranks = make_ranks(experiment, shape, plan.owner, kRanks);
  auto groups = make_groups(kRanks);
  constexpr uint64_t kSteps = 2;
  train(ranks, groups, data, 0, kSteps);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    const auto sent = static_cast<double>(groups[rank]->meters().bytes_sent()) / kSteps;
    const auto planned = static_cast<double>(plan.nodes[rank].bytes_sent_per_step);
    EXPECT_GE(planned, (1 - kTolerance) * sent) << "rank " << rank;
    EXPECT_LE(planned, (1 + (c.leaves_out_zeros ? 0.5 : kTolerance)) * sent) << "rank " << rank;
  }
}

TEST(Prediction, AStepSendsWhatThePlanSays) {
  compare({"none", Loss::kSigmoid, {64}, 0});
  compare({"bf16", Loss::kSoftmax, {64}, 0});
  compare({"int8", Loss::kSoftmax, {80, 48}, 0, true});
  compare({"bf16", Loss::kSigmoid, {64, 48}, 1});
}

// The most that a modelet takes is what it takes while all of its rows are hashed anew.
TEST(Prediction, AModeletTakesNoMoreMemoryThanThePlanSays) {
  const ModeletSpec spec{.layer = 1, .kind = LayerKind::kOutput, .inputs = 64, .begin = 0, .end = 5000};
  Experiment experiment;
  experiment.sampling.mode = SamplingMode::kLsh;
  shard::Modelet modelet(spec, experiment, true);
  hashing::LshIndex& index = modelet.retrieval()->index;
  std::vector<uint32_t> rows(spec.neurons());
  std::iota(rows.begin(), rows.end(), 0u);
  const AlignedVector<float> weights(spec.neurons() * spec.inputs, 0.5f);

  const size_t idle = modelet.memory_bytes();
  index.begin_rehash(rows, ConstMatrix{weights.data(), spec.neurons(), spec.inputs, spec.inputs});
  const size_t begun = modelet.memory_bytes();
  index.work();
  const size_t codes = modelet.memory_bytes() - idle;
  const auto most = static_cast<double>(begun + codes),
             planned = static_cast<double>(modelet_bytes(spec, experiment));
  EXPECT_NEAR(planned, most, 0.05 * most);
}

}  // namespace
}  // namespace modelet::agent::testing
