// What a plan predicts compared with what really happens: the bytes that a step sends, the memory of a
// modelet.
#include <gtest/gtest.h>
#include <malloc.h>

#include <numeric>

#include "base/array/aligned.h"
#include "base/experiment/memory.h"
#include "base/experiment/partition.h"
#include "node_agent/replicas/rank_grid.h"
#include "node_agent/replicas/replica_sync.h"
#include "scheduler/plan/placement.h"
#include "shard/modelet/modelet.h"
#include "shard/synth/synth.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

// Only the size of envelopes varies, because of the padding between their fields.
constexpr double kTolerance = 0.01;

struct Case {
  CodecKind codec;
  Loss loss;
  std::vector<uint32_t> hidden;
  float clip;
  bool leaves_out_zeros = false;
  bool centroids = false;
};

// Bytes that this process has allocated.
size_t allocated_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd + bytes_in_pages();
}

void compare(const Case& c) {
  SCOPED_TRACE(std::string(spelling(c.codec)) + ", " + std::to_string(c.hidden.size()) + " hidden layers");
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
  experiment.model = {.hidden = c.hidden, .loss = c.loss, .centroids = c.centroids};
  experiment.modelets = {.hidden_columns = 16, .output_modelets = 5};
  experiment.train.batch = 24;  // not a multiple of what it is padded to
  experiment.optimizer.clip = c.clip;
  experiment.exchange.codec = c.codec;
  experiment.exchange.micro_batches = 3;
  const std::vector<scheduler::NodeCapacity> nodes(kRanks, {"node", 1, uint64_t{4} << 30, 10, 10});
  const scheduler::Plan plan = scheduler::make_plan(experiment, shape, nodes);

  auto ranks = make_ranks(experiment, shape, plan.owner, kRanks);
  build_pairs(ranks, data);
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
  compare({CodecKind::kNone, Loss::kSigmoid, {64}, 0});
  compare({CodecKind::kBf16, Loss::kSoftmax, {64}, 0});
  compare({CodecKind::kInt8, Loss::kSoftmax, {80, 48}, 0, true});
  compare({CodecKind::kBf16, Loss::kSigmoid, {64, 48}, 1});
  compare({CodecKind::kBf16, Loss::kSigmoid, {64}, 0, false, true});
}

// A modelet takes most memory while all of its rows are hashed anew.
TEST(Prediction, AModeletTakesNoMoreMemoryThanThePlanSays) {
  const ModeletSpec spec{.layer = 1, .kind = LayerKind::kOutput, .inputs = 64, .begin = 0, .end = 5000};
  Experiment experiment;
  experiment.sampling.mode = SamplingMode::kLsh;
  {
    const auto taken =
        static_cast<double>(shard::Modelet(spec, shard::modelet_options(experiment, true)).memory_bytes());
    EXPECT_NEAR(static_cast<double>(modelet_bytes(spec, experiment)), taken, 0.05 * taken) << "projections";
  }
  experiment.sampling.retrieval = RetrievalKind::kTables;
  shard::Modelet modelet(spec, shard::modelet_options(experiment, true));
  hashing::LshIndex& index = *modelet.retrieval()->tables;
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

// What synchronising takes in addition to the model: copies, buffers and messages, for models with small and
// with large modelets. All rows are changed, so this is the maximum, except that in one process the received
// message is the same memory as the sent one.
TEST(Prediction, SynchronisingTakesNoMoreMemoryThanThePlanSays) {
  const DataShape shape{.features = 3000, .labels = 60'000, .labels_per_row = 3};
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam})
    for (const uint32_t output_modelets : {1, 30}) {
      constexpr uint32_t kReplicas = 3;
      SCOPED_TRACE(std::to_string(output_modelets) + " output modelets");
      Experiment experiment;
      experiment.model.hidden = {48};
      experiment.modelets = {.hidden_columns = 16, .output_modelets = output_modelets};
      experiment.optimizer.kind = kind;
      experiment.exchange.codec = CodecKind::kInt8;
      experiment.cluster.replicas = kReplicas;
      Experiment alone = experiment;
      alone.cluster.replicas = 1;
      uint64_t planned = 0, buffers = 0;
      for (const ModeletSpec& spec : partition_model(experiment, shape)) {
        planned += modelet_bytes(spec, experiment) - modelet_bytes(spec, alone);
        buffers = std::max(buffers, sync_buffer_bytes(spec, experiment));
      }
      planned += buffers;

      std::vector<std::unique_ptr<Rank>> ranks;
      for (uint32_t i = 0; i < kReplicas; ++i)
        ranks.push_back(
            std::make_unique<Rank>(experiment, shape, round_robin(experiment, shape, 1), 0, 1, 1));
      auto groups = make_groups(kReplicas);
      const size_t before = allocated_bytes();
      std::vector<std::unique_ptr<RankGrid>> grids(kReplicas);
      std::vector<std::unique_ptr<ReplicaSync>> syncs(kReplicas);
      comm::testing::run_ranks(groups, [&](comm::Group& group) {
        const auto self = static_cast<size_t>(group.rank());
        grids[self] = std::make_unique<RankGrid>(group, kReplicas);
        syncs[self] = std::make_unique<ReplicaSync>(ranks[self]->network);
        for (const auto& modelet : ranks[self]->network.modelets()) {
          shard::Parameters& p = modelet->parameters();
          // The modelets of the input layer share the clock of a row.
          for (size_t row = 0; row < p.rows(); ++row) p.clock(row) = 1;
        }
        syncs[self]->synchronise_exactly(*grids[self], 1, false);
      });
      const auto measured = static_cast<double>(allocated_bytes() - before) / kReplicas;
      EXPECT_GE(static_cast<double>(planned), measured);
      EXPECT_LE(static_cast<double>(planned), 2.5 * measured);
      EXPECT_LE(syncs[0]->memory_bytes(), planned);
    }
}

}  // namespace
}  // namespace modelet::agent::testing
