// What is learned does not depend on the number of ranks, the placement or the threads. Compares the losses
// of n ranks with those of one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/clock.h"
#include "shard/synth/synth.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

constexpr uint64_t kStepsCompared = 30;
constexpr double kTolerance = 1e-4;  // relative to the loss of any step
#ifdef __SANITIZE_THREAD__           // many times slower; three ranks have every kind of thread
constexpr int kSizes[] = {3};
#else
constexpr int kSizes[] = {2, 3, 4, 8};
#endif

Experiment small_experiment(SamplingMode mode, Loss loss, const std::vector<uint32_t>& hidden, float clip) {
  Experiment e;
  e.model = {.hidden = hidden, .loss = loss};
  e.modelets = {.hidden_columns = 16, .output_modelets = 5};
  e.sampling.mode = mode;
  e.sampling.uniform = 30;
  e.sampling.top = 10;
  e.sampling.tables = 8;
  e.sampling.bits = 4;
  e.sampling.rehash_every = 7;
  e.optimizer.clip = clip;
  e.exchange.codec = CodecKind::kNone;
  e.train.batch = 24;
  e.train.learning_rate = 0.01f;
  return e;
}

std::string name_of(SamplingMode mode) { return std::string(spelling(mode)); }

void expect_close(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t s = 0; s < expected.size(); ++s)
    ASSERT_NEAR(actual[s], expected[s], tolerance * expected[s]) << "loss of step " << s;
}

// Learnable data: 200 samples, 120 labels, 150 features.
class Parity : public ::testing::Test {
 protected:
  Parity() {
    shard::write_synth(
        {.rows_train = 200, .rows_test = 1, .features = 150, .labels = 120, .features_per_row = 12},
        folder_.path(), false);
    data_ = shard::Dataset::open(folder_ / "train.mlt");
    shape_ = {.features = data_.features(), .labels = data_.labels(), .labels_per_row = 3};
  }

  std::vector<double> losses(const Experiment& experiment, int size, unsigned threads = 1) const {
    return losses(experiment, size, round_robin(experiment, shape_, size), threads);
  }
  std::vector<double> losses(const Experiment& experiment, int size, const std::vector<uint32_t>& owner,
                             unsigned threads = 1) const {
    auto ranks = make_ranks(experiment, shape_, owner, size, threads);
    auto groups = make_groups(size);
    return train(ranks, groups, data_, 0, kStepsCompared);
  }

  // Three uneven placements: all hidden columns on the last rank; all modelets on one of several ranks;
  // random.
  std::vector<std::vector<uint32_t>> uneven_placements(const Experiment& experiment, uint32_t size) const {
    const auto partition = partition_model(experiment, shape_);
    std::vector<std::vector<uint32_t>> placements(3, std::vector<uint32_t>(partition.size()));
    Rng rng(3);
    for (const ModeletSpec& spec : partition) {
      placements[0][spec.id] = spec.kind == LayerKind::kOutput ? spec.id % size : size - 1;
      placements[1][spec.id] = 1;
      placements[2][spec.id] = rng.below(size);
    }
    return placements;
  }

  TemporaryFolder folder_;
  shard::Dataset data_;
  DataShape shape_;
};

class ParityTest : public Parity, public ::testing::WithParamInterface<SamplingMode> {};

// Instantiates a test for each combination of values.
template <class... Values>
class ParityOf : public Parity, public ::testing::WithParamInterface<std::tuple<Values...>> {};
using PlacementTest = ParityOf<SamplingMode, Loss, std::vector<uint32_t>, float>;
using AheadTest = ParityOf<SamplingMode, std::vector<uint32_t>>;
using ThreadsTest = ParityOf<SamplingMode, Loss, float>;
using CodecTest = ParityOf<SamplingMode, Loss, CodecKind>;
class LossyCodecTest : public CodecTest {};
class MicroBatchTest : public CodecTest {};
using PrecisionTest = ParityOf<SamplingMode, Loss>;

TEST_P(PlacementTest, LossesDoNotDependOnRanksOrPlacement) {
  const auto& [mode, loss, hidden, clip] = GetParam();
  const Experiment experiment = small_experiment(mode, loss, hidden, clip);
  const std::vector<double> alone = losses(experiment, 1);
  EXPECT_LT(alone.back(), 0.99 * alone.front()) << "nothing is learned";
  for (const int size : kSizes) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    expect_close(losses(experiment, size), alone, kTolerance);
  }
  for (const auto& owner : uneven_placements(experiment, 3)) {
    SCOPED_TRACE("uneven placement");
    expect_close(losses(experiment, 3, owner), alone, kTolerance);
  }
}

TEST_P(AheadTest, ToBeginTheNextStepAheadChangesNoBit) {
  const auto& [mode, hidden] = GetParam();
  Experiment experiment = small_experiment(mode, Loss::kSoftmax, hidden, 0.5f);
  experiment.train.hidden_dropout = 0.2f;
  experiment.exchange.codec = CodecKind::kInt8;
  experiment.exchange.micro_batches = 2;
  std::vector<double> losses[2];
  std::map<std::string, std::vector<std::byte>> states[2];
  for (const bool ahead : {false, true}) {
    auto ranks = make_ranks(experiment, shape_, round_robin(experiment, shape_, 2), 2);
    auto groups = make_groups(2);
    losses[ahead] = train(ranks, groups, data_, 0, kStepsCompared, ahead);
    states[ahead] = state_of(ranks);
  }
  EXPECT_EQ(losses[1], losses[0]);
  EXPECT_EQ(states[1], states[0]);
}

TEST_P(ThreadsTest, LossesAreTheSameToTheBitWithOneThreadAndSeveral) {
  const auto& [mode, loss, clip] = GetParam();
  const Experiment experiment = small_experiment(mode, loss, {32, 16}, clip);
  EXPECT_EQ(losses(experiment, 1, 1), losses(experiment, 1, kSeveralThreads));
}

TEST_P(ParityTest, DropoutDoesNotDependOnRanksPlacementOrThreads) {
  Experiment experiment = small_experiment(GetParam(), Loss::kSoftmax, {32, 16}, 0);
  const std::vector<double> whole = losses(experiment, 1);
  experiment.train.input_dropout = 0.2f;
  const std::vector<double> input = losses(experiment, 1);
  experiment.train.hidden_dropout = 0.3f;
  const std::vector<double> both = losses(experiment, 1);
  EXPECT_NE(input, whole);
  EXPECT_NE(both, input);
  EXPECT_EQ(losses(experiment, 1, kSeveralThreads), both);
  for (const int size : {2, 4}) expect_close(losses(experiment, size), both, kTolerance);
  for (const auto& owner : uneven_placements(experiment, 3))
    expect_close(losses(experiment, 3, owner), both, kTolerance);
  experiment.train.seed = 2;
  EXPECT_NE(losses(experiment, 1), both);
}

// Lossy codecs are compared without hash tables, because rounding may change which neurons a step retrieves.
TEST_P(LossyCodecTest, StaysCloseAndRepeats) {
  const auto& [mode, loss, codec] = GetParam();
  Experiment experiment = small_experiment(mode, loss, {32, 16}, 0);
  const std::vector<double> exact = losses(experiment, 3);
  experiment.exchange.codec = codec;
  const std::vector<double> first = losses(experiment, 3);
  EXPECT_EQ(losses(experiment, 3), first) << "the same seed rounds in the same way";
  EXPECT_NE(first, exact) << "the codec is not used";
  expect_close(first, exact, retrieves_neurons(mode) ? 0.05 : 0.02);
  experiment.train.seed = 2;
  EXPECT_NE(losses(experiment, 3), first);
}

// How a row is rounded depends on its place in the batch, not in its micro-batch.
TEST_P(MicroBatchTest, ChangesNoBitWithAnyCodec) {
  const auto& [mode, loss, codec] = GetParam();
  Experiment experiment = small_experiment(mode, loss, {32, 16}, 0.5f);
  experiment.exchange.codec = codec;
  experiment.train.batch = 64;  // three micro-batches: 32, 16, 16
  std::map<uint32_t, std::map<std::string, std::vector<std::byte>>> states;
  for (const uint32_t micro_batches : {1u, 3u, 0u}) {  // 0: the number varies
    experiment.exchange.micro_batches = micro_batches;
    auto ranks = make_ranks(experiment, shape_, round_robin(experiment, shape_, 2), 2);
    auto groups = make_groups(2);
    train(ranks, groups, data_, 0, 5);
    states[micro_batches] = state_of(ranks);
  }
  EXPECT_EQ(states[1], states[3]);
  EXPECT_EQ(states[1], states[0]);
}

// Where an activation is zero, no gradient travels: dropout of nine in ten makes gradients shorter. (Activations are
// as long as ever with the codec `none`.)
TEST_F(Parity, GradientsOfInactiveNeuronsDoNotTravel) {
  constexpr uint64_t kSteps = 4;
  constexpr size_t kBatch = 24,
                   kValues = kBatch * (2 * 16 + 32);  // that the output layer, and layer 1, send back
  Experiment experiment = small_experiment(SamplingMode::kUniform, Loss::kSoftmax, {32, 16}, 0);
  experiment.exchange.gradient_codec = CodecKind::kInt8;
  const auto sent = [&](float dropout) {
    experiment.train.hidden_dropout = dropout;
    auto ranks = make_ranks(experiment, shape_, round_robin(experiment, shape_, 2), 2);
    auto groups = make_groups(2);
    train(ranks, groups, data_, 0, kSteps);
    uint64_t bytes = 0;
    for (const auto& group : groups) bytes += group->meters().bytes_sent();
    return bytes;
  };
  EXPECT_LT(sent(0.9f) + kSteps * kValues / 5, sent(0));
}

// A clock on which each step takes one time with `best` micro-batches, and another time with any other
// number.
class ClockOf final : public Clock {
 public:
  ClockOf(uint32_t best, const std::unique_ptr<TrainingStep>& step) : best_(best), step_(step) {}
  double now() const override {
    if (std::exchange(in_step_, !in_step_)) time_ += step_->micro_batches() == best_ ? 0.5 : 1;
    return time_;
  }

 private:
  const uint32_t best_;
  const std::unique_ptr<TrainingStep>& step_;
  mutable bool in_step_ = false;
  mutable double time_ = 0;
};

// Each rank finds another number of micro-batches the fastest. All ranks split each step as rank 0 finds
// best.
TEST_P(ParityTest, RanksCutAsTheFirstFindsBest) {
  constexpr uint32_t kBest[] = {2, 4, 1};
  constexpr uint64_t kUntilChosen = MicroBatches::kWarmUp + MicroBatches::kTrial, kAll = kUntilChosen + 4;
  Experiment experiment = small_experiment(GetParam(), Loss::kSoftmax, {32}, 0);
  experiment.train.batch = 128;  // four micro-batches: 64, 32, 16, 16
  const std::vector<uint32_t> owner = round_robin(experiment, shape_, 3);
  experiment.exchange.micro_batches = 1;
  auto undivided = make_ranks(experiment, shape_, owner, 3);
  auto groups = make_groups(3);
  const std::vector<double> losses = train(undivided, groups, data_, 0, kAll);

  experiment.exchange.micro_batches = 0;
  auto ranks = make_ranks(experiment, shape_, owner, 3);
  groups = make_groups(3);
  std::vector<size_t> micro_batches[3];
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    const auto self = static_cast<size_t>(group.rank());
    std::unique_ptr<TrainingStep> step;
    step = std::make_unique<TrainingStep>(ranks[self]->network, ranks[self]->sharding, group,
                                          std::make_unique<ClockOf>(kBest[self], step));
    shard::BatchOrder order(shard::all_rows(data_.rows()), experiment.train.batch, experiment.train.seed);
    shard::Batch batch;
    for (uint64_t s = 0; s < kAll; ++s) {
      batch.assign(data_, order.rows(s), true);
      EXPECT_EQ(step->run(batch, s, experiment.train.learning_rate, false).loss, losses[s]);
      // Only full batches count; the last batch of an epoch has 72 samples.
      if (batch.size() == experiment.train.batch) micro_batches[self].push_back(step->micro_batches());
    }
  });
  EXPECT_EQ(micro_batches[1], micro_batches[0]);
  EXPECT_EQ(micro_batches[2], micro_batches[0]);
  EXPECT_EQ(micro_batches[0].back(), kBest[0]);
}

// The logits of one neuron are so far above the reference of the exponentials that these overflow, or would
// wrap round. With one rank the neuron is in the middle of the rank's neurons, with more ranks it is among
// the first.
TEST_P(ParityTest, OneVeryLargeLogitOverflowsNothing) {
  constexpr size_t kNeuron = 70;
  Experiment experiment = small_experiment(GetParam(), Loss::kSoftmax, {32}, 0);
  experiment.train.learning_rate = 1e-5f;
  const auto losses_with_bias = [&](float bias, int size, uint32_t micro_batches) {
    experiment.exchange.micro_batches = micro_batches;
    auto ranks = make_ranks(experiment, shape_, round_robin(experiment, shape_, size), size);
    for (const auto& rank : ranks)
      for (const auto& modelet : rank->network.modelets())
        if (const ModeletSpec& spec = modelet->spec();
            spec.kind == LayerKind::kOutput && spec.begin <= kNeuron && kNeuron < spec.end)
          modelet->parameters().bias(kNeuron - spec.begin) = bias;
    auto groups = make_groups(size);
    return train(ranks, groups, data_, 0, 4);
  };
  const std::vector<double> alone = losses_with_bias(150, 1, 1), on_three = losses_with_bias(150, 3, 1);
  expect_close(on_three, alone, kTolerance);
  EXPECT_EQ(losses_with_bias(150, 3, 3), on_three);
  if (GetParam() != SamplingMode::kFull) return;  // otherwise the neuron is not active in every step
  for (const float bias : {80.0f, 150.0f, 200.0f, 300.0f, 380.0f, 5000.0f})
    EXPECT_NEAR(losses_with_bias(bias, 1, 1)[0], bias, 0.05 * bias);
  EXPECT_THROW(losses_with_bias(std::numeric_limits<float>::quiet_NaN(), 1, 1), Error);
}

// The batch is odd, so that the last sample has no partner in its pair of bf16. The active set is sometimes
// odd too.
TEST_P(PrecisionTest, Bf16WeightsLearnAsFp32DoesAndRepeat) {
  const auto& [mode, loss] = GetParam();
  const bool retrieves = retrieves_neurons(mode);
  Experiment experiment = small_experiment(mode, loss, {32, 16}, loss == Loss::kSoftmax ? 0 : 0.5f);
  experiment.train.batch = 23;
  const std::vector<double> exact = losses(experiment, 1);
  experiment.model.precision = Precision::kBf16;
  const std::vector<double> first = losses(experiment, 1);
  EXPECT_NE(first, exact) << "bf16 is not used";
  expect_close(first, exact, retrieves ? 0.05 : 0.02);
  EXPECT_EQ(losses(experiment, 1, kSeveralThreads), first);
  expect_close(losses(experiment, 3), first, retrieves ? 0.05 : 0.01);
  experiment.train.seed = 2;
  EXPECT_NE(losses(experiment, 1), first);
}

using ::testing::Combine;
using ::testing::Values;
const auto kModes = ::testing::ValuesIn(all_values<SamplingMode>());
const auto kLosses = ::testing::ValuesIn(all_values<Loss>());
using Widths = std::vector<uint32_t>;

// The values of a test as words: "uniform_sigmoid_32_16_int8".
std::string word(SamplingMode mode) { return name_of(mode); }
std::string word(Loss loss) { return std::string(spelling(loss)); }
std::string word(float clip) { return clip == 0 ? "unclipped" : "clipped"; }
std::string word(CodecKind codec) { return std::string(spelling(codec)); }
std::string word(const Widths& hidden) {
  std::string text;
  for (const uint32_t width : hidden) text += (text.empty() ? "" : "_") + std::to_string(width);
  return text;
}
const auto kInWords = [](const auto& test) {
  return std::apply(
      [](const auto& first, const auto&... others) { return (word(first) + ... + ("_" + word(others))); },
      test.param);
};

INSTANTIATE_TEST_SUITE_P(Modes, ParityTest, kModes, [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(Parity, PlacementTest,
                         Combine(kModes, kLosses, Values(Widths{32}, Widths{32, 16, 48}), Values(0.0f, 0.5f)),
                         kInWords);
INSTANTIATE_TEST_SUITE_P(Parity, AheadTest, Combine(kModes, Values(Widths{32}, Widths{32, 16})), kInWords);
INSTANTIATE_TEST_SUITE_P(Parity, ThreadsTest, Combine(kModes, kLosses, Values(0.0f, 0.5f)), kInWords);
INSTANTIATE_TEST_SUITE_P(Parity, LossyCodecTest,
                         Combine(kModes, kLosses, Values(CodecKind::kBf16, CodecKind::kInt8)), kInWords);
INSTANTIATE_TEST_SUITE_P(Parity, MicroBatchTest,
                         Combine(kModes, kLosses,
                                 Values(CodecKind::kNone, CodecKind::kInt8, CodecKind::kInt4)),
                         kInWords);
INSTANTIATE_TEST_SUITE_P(Parity, PrecisionTest, Combine(kModes, kLosses), kInWords);

}  // namespace
}  // namespace modelet::agent::testing
