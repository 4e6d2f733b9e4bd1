// Machines with different vectors learn the same: the losses of a training run on every instruction set of
// this machine, compared with those of the plainest one, which has no vector instructions.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "shard/synth/synth.h"
#include "tests/node_agent/ranks.h"
#include "tests/shard/kernels/forced_instruction_set.h"

namespace modelet::agent::testing {
namespace {

using shard::kernels::available_instruction_sets;
using shard::kernels::ForcedInstructionSet;

constexpr uint64_t kSteps = 20;
// Relative to the loss of any step. Sums in another order differ by about 1e-7, and Adam divides by small
// numbers.
constexpr double kTolerance = 1e-5;
// Rounding may decide which of two nearly equal neurons is retrieved.
constexpr double kRetrievalTolerance = 2e-2;
// Activations and gradients are rounded by up to 1/256 each, in sums of many terms. Once hidden layers round as well,
// what is learned differs more with each step, so later steps have a tolerance of their own.
constexpr double kPairTolerance = 3e-3, kLaterPairTolerance = 1e-2;
constexpr size_t kEarlySteps = 10;

using Ranks = std::vector<std::unique_ptr<Rank>>;

class InstructionSetTest : public ::testing::TestWithParam<SamplingMode> {
 protected:
  InstructionSetTest() {
    shard::write_synth(
        {.rows_train = 400, .rows_test = 1, .features = 300, .labels = 250, .features_per_row = 20},
        folder_.path(), false);
    data_ = shard::Dataset::open(folder_ / "train.mlt");
  }

  Ranks new_ranks(const Experiment& experiment) const {
    const DataShape shape{.features = data_.features(), .labels = data_.labels(), .labels_per_row = 3};
    return make_ranks(experiment, shape, round_robin(experiment, shape, 1), 1, kSeveralThreads);
  }

  std::vector<double> losses(Ranks& ranks, uint64_t steps) const {
    auto groups = make_groups(1);
    return train(ranks, groups, data_, 0, steps);
  }

  // The loss of the first batch over all neurons, with the weights of `ranks`. The losses of steps cannot be
  // compared with each other: each is over other neurons, and retrieval makes them harder as the network
  // learns.
  double full_loss(Experiment experiment, const Ranks& ranks) const {
    experiment.sampling.mode = SamplingMode::kFull;
    Ranks full = new_ranks(experiment);
    for (size_t m = 0; m < full[0]->network.modelets().size(); ++m) {
      const auto from = ranks[0]->network.modelets()[m]->parameters().arrays(),
                 to = full[0]->network.modelets()[m]->parameters().arrays();
      for (size_t i = 0; i < to.size(); ++i) to[i].unpack(from[i].packed());
    }
    return losses(full, 1).front();
  }

  Experiment small_experiment() const {
    Experiment experiment;
    experiment.model.hidden = {48, 32};
    experiment.modelets = {.hidden_columns = 16, .output_modelets = 3};
    experiment.sampling.mode = GetParam();
    experiment.sampling.uniform = 60;
    experiment.sampling.tables = 8;
    experiment.sampling.bits = 5;
    experiment.sampling.rehash_every = 7;
    experiment.train.batch = 40;
    experiment.train.learning_rate = 0.02f;
    return experiment;
  }

  // Tolerances are relative to the loss of a step: of the first kEarlySteps, and of those after them.
  void compare(const Experiment& experiment, double tolerance, double later) const {
    std::vector<std::string> others = available_instruction_sets();
    const std::string plainest = others.back();
    others.pop_back();
    std::vector<double> expected;
    {
      const ForcedInstructionSet forced(plainest);
      Ranks ranks = new_ranks(experiment);
      const double untrained = full_loss(experiment, ranks);
      expected = losses(ranks, kSteps);
      EXPECT_LT(full_loss(experiment, ranks), 0.99 * untrained) << "nothing is learned";
    }
    for (const std::string& instruction_set : others) {
      SCOPED_TRACE(instruction_set);
      const ForcedInstructionSet forced(instruction_set);
      Ranks ranks = new_ranks(experiment);
      const std::vector<double> actual = losses(ranks, kSteps);
      for (size_t step = 0; step < kSteps; ++step)
        ASSERT_NEAR(actual[step], expected[step], (step < kEarlySteps ? tolerance : later) * expected[step])
            << "loss of step " << step;
    }
  }

  TemporaryFolder folder_;
  shard::Dataset data_;
};

TEST_P(InstructionSetTest, LossesAreThoseOfThePlainestOne) {
  for (const Loss loss : all_values<Loss>())
    for (const OptimizerKind optimizer : all_values<OptimizerKind>()) {
      SCOPED_TRACE("loss " + std::to_string(static_cast<int>(loss)) + ", optimiser " +
                   std::to_string(static_cast<int>(optimizer)));
      Experiment experiment = small_experiment();
      experiment.model.loss = loss;
      experiment.optimizer.kind = optimizer;
      const double tolerance = retrieves_neurons(GetParam()) ? kRetrievalTolerance : kTolerance;
      compare(experiment, tolerance, tolerance);
    }
}

// If the machine multiplies pairs of bf16, the activations are rounded too.
TEST_P(InstructionSetTest, LossesOfWeightsInBf16AreNearThoseOfThePlainestOne) {
  Experiment experiment = small_experiment();
  experiment.model.precision = Precision::kBf16;
  if (retrieves_neurons(GetParam())) return compare(experiment, kRetrievalTolerance, kRetrievalTolerance);
  compare(experiment, kPairTolerance, kLaterPairTolerance);
}

// The test above relies on this. On 64-bit ARM the kernels have NEON and no other instruction set; there,
// golden_test compares the steps with numpy. From Highway 1.1 on, SSE2 is the plainest of x86-64.
TEST(InstructionSetsTest, TheLastOneIsPlain) {
  const std::vector<std::string> sets = available_instruction_sets();
  EXPECT_TRUE(shard::kernels::is_plain(sets.back()) || sets.back() == "SSE2" ||
              sets == std::vector<std::string>{"NEON"})
      << sets.back();
}

std::string name_of(SamplingMode mode) { return std::string(spelling(mode)); }

INSTANTIATE_TEST_SUITE_P(Modes, InstructionSetTest, ::testing::ValuesIn(all_values<SamplingMode>()),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace modelet::agent::testing
