// A failed step changes nothing: no weight, optimiser state, clock, hash table or mean. So it can be run
// again, and the run continues as if nothing had happened.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>

#include "base/error.h"
#include "comm/transport/inproc.h"
#include "shard/data/batch/split.h"
#include "shard/synth/synth.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

constexpr uint64_t kStepsBefore = 5, kStepsAfter = 3;

enum class Failure { kLoseOne, kCutOff };

// Loses the message with this number, counted from 0; or sends nothing from that message on, and reports it.
class FailingTransport final : public comm::Transport {
 public:
  FailingTransport(std::unique_ptr<comm::Transport> inner, Failure failure, int number)
      : inner_(std::move(inner)), failure_(failure), left_(number) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void interrupt(const std::string& reason) override { inner_->interrupt(reason); }
  bool receive(double timeout_seconds, comm::Frame& frame) override {
    return inner_->receive(timeout_seconds, frame);
  }
  void send(std::span<const int> to, const comm::RecycledPtr<comm::Message>& message) override {
    for (const int& rank : to) {
      const int left = left_--;
      if (failure_ == Failure::kCutOff && left <= 0) throw PeerError(rank, "cut off");
      if (left != 0) inner_->send(std::span(&rank, 1), message);
    }
  }

 private:
  std::unique_ptr<comm::Transport> inner_;
  Failure failure_;
  int left_;
};

class FailedStepTest : public ::testing::TestWithParam<SamplingMode> {
 protected:
  FailedStepTest() {
    shard::write_synth(
        {.rows_train = 150, .rows_test = 1, .features = 100, .labels = 80, .features_per_row = 12},
        folder_.path(), false);
    data_ = shard::Dataset::open(folder_ / "train.mlt");
    shape_ = {.features = data_.features(), .labels = data_.labels()};
    experiment_.model.hidden = {32, 16};
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 4};
    experiment_.sampling.mode = GetParam();
    experiment_.sampling.uniform = 20;
    experiment_.sampling.tables = 8;
    experiment_.sampling.bits = 4;
    experiment_.sampling.rehash_every = 3;  // a re-hash is pending at the failure
    experiment_.optimizer.clip = 0.5f;      // one more exchange
    experiment_.train.batch = 20;
    experiment_.exchange.micro_batches = 2;
    experiment_.train.learning_rate = 0.01f;
  }

  std::vector<std::unique_ptr<Rank>> two_ranks() const {
    return make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 2), 2);
  }

  // Two ranks with short time-outs. Rank 1 loses one of the messages that it sends.
  static std::vector<std::unique_ptr<comm::Group>> groups_that_lose(int message) {
    const comm::GroupOptions impatient{.run = 1, .timeout_seconds = 0.15};
    auto transports = comm::make_inproc_transports(2);
    std::vector<std::unique_ptr<comm::Group>> groups;
    groups.push_back(std::make_unique<comm::Group>(std::move(transports[0]), impatient));
    groups.push_back(std::make_unique<comm::Group>(
        std::make_unique<FailingTransport>(std::move(transports[1]), Failure::kLoseOne, message), impatient));
    return groups;
  }

  // Runs step kStepsBefore on a rank and returns its loss.
  double attempt(Rank& rank, comm::Group& group) const {
    const Experiment::Train& options = experiment_.train;
    shard::BatchOrder order(shard::all_rows(data_.rows()), options.batch, options.seed);
    shard::Batch batch;
    batch.assign(data_, order.rows(kStepsBefore), true);
    TrainingStep step(rank.network, rank.sharding, group);
    return step.run(batch, kStepsBefore, options.learning_rate, false).loss;
  }

  TemporaryFolder folder_;
  shard::Dataset data_;
  DataShape shape_;
  Experiment experiment_;
};

TEST_P(FailedStepTest, ALostMessageOfAnyRoundChangesNothingAndTheStepCanBeRepeated) {
  auto undisturbed = two_ranks();
  auto groups = make_groups(2);
  const std::vector<double> losses = train(undisturbed, groups, data_, 0, kStepsBefore + 1 + kStepsAfter);
  const auto final_state = state_of(undisturbed);

  // Messages of two hidden layers: forward twice and output, each in two micro-batches; backward, clipping.
  // Rank 0 misses one of them.
  constexpr int kRounds = 8;
  for (int lost = 0; lost < kRounds; ++lost) {
    SCOPED_TRACE("lost message " + std::to_string(lost));
    auto ranks = two_ranks();
    auto before_failure = make_groups(2);
    train(ranks, before_failure, data_, 0, kStepsBefore);
    const auto state = state_of(ranks);

    auto failing = groups_that_lose(lost);
    std::atomic<bool> failed[2] = {false, false};
    comm::testing::run_ranks(failing, [&](comm::Group& group) {
      const auto self = static_cast<size_t>(group.rank());
      try {
        attempt(*ranks[self], group);
      } catch (const PeerError&) {
        failed[self] = true;
      }
    });
    EXPECT_TRUE(failed[0]);
    const auto state_after = state_of(ranks);
    for (size_t r = 0; r < 2; ++r) {
      if (!failed[r]) continue;
      for (const ModeletSpec& spec : ranks[r]->sharding.held())
        EXPECT_EQ(state_after.at(spec.name()), state.at(spec.name())) << spec.name() << " has changed";
    }
    // A rank that misses a round sends nothing later. So the other rank fails as well, except in the last
    // round.
    if (lost < kRounds - 1) {
      ASSERT_TRUE(failed[1]);
      auto fresh = make_groups(2);
      comm::testing::run_ranks(fresh, [&](comm::Group& group) {
        EXPECT_EQ(attempt(*ranks[static_cast<size_t>(group.rank())], group), losses[kStepsBefore]);
      });
      const std::vector<double> rest = train(ranks, fresh, data_, kStepsBefore + 1, kStepsAfter);
      EXPECT_EQ(rest, std::vector<double>(losses.end() - kStepsAfter, losses.end()));
      EXPECT_EQ(state_of(ranks), final_state);
    }
  }
}

// If the run chooses the number of micro-batches, one rank may have received the first message of rank 0 in a
// failed step and another may not. Both must still split the batch alike when a new group runs the step
// again.
TEST_P(FailedStepTest, RanksCutAlikeAfterAFailure) {
  experiment_.exchange.micro_batches = 0;
  auto undisturbed = two_ranks();
  auto groups = make_groups(2);
  constexpr uint64_t kSteps = 6;
  const std::vector<double> losses = train(undisturbed, groups, data_, 0, kSteps);
  for (const int lost : {0, 2}) {
    auto ranks = two_ranks();
    uint64_t done[2] = {0, 0};
    const auto run_on = [&](comm::Group& group) {
      const auto self = static_cast<size_t>(group.rank());
      TrainingStep step(ranks[self]->network, ranks[self]->sharding, group);
      shard::BatchOrder order(shard::all_rows(data_.rows()), experiment_.train.batch, experiment_.train.seed);
      shard::Batch batch;
      for (uint64_t& at = done[self]; at < kSteps; ++at) {
        batch.assign(data_, order.rows(at), true);
        EXPECT_EQ(step.run(batch, at, experiment_.train.learning_rate, false).loss, losses[at]);
      }
    };
    auto failing = groups_that_lose(lost), fresh = make_groups(2);
    EXPECT_THROW(comm::testing::run_ranks(failing, run_on), PeerError);
    EXPECT_EQ(done[0], 0u);
    EXPECT_EQ(done[1], 0u);
    comm::testing::run_ranks(fresh, run_on);
    EXPECT_EQ(done[0], kSteps);
  }
}

// A step sends the first activations of the next step. If these are lost or cannot be sent, the step itself
// still succeeds; the next step fails and changes nothing.
TEST_P(FailedStepTest, AStepThatWasBegunAheadFailsByItself) {
  auto undisturbed = two_ranks();
  auto groups = make_groups(2);
  train(undisturbed, groups, data_, 0, 1);
  const auto state = state_of(undisturbed);
  constexpr int kMessages = 8;  // that a rank sends in a step, see above
  for (const Failure failure : {Failure::kLoseOne, Failure::kCutOff}) {
    SCOPED_TRACE(failure == Failure::kLoseOne ? "lost" : "cut off");
    // The first step must succeed, also if a thread has to wait for a processor.
    const comm::GroupOptions impatient{.run = 1, .timeout_seconds = 3};
    auto transports = comm::make_inproc_transports(2);
    auto failing = std::make_unique<FailingTransport>(std::move(transports[1]), failure, kMessages);
    std::vector<std::unique_ptr<comm::Group>> two;
    two.push_back(std::make_unique<comm::Group>(std::move(transports[0]), impatient));
    two.push_back(std::make_unique<comm::Group>(std::move(failing), impatient));
    auto ranks = two_ranks();
    comm::testing::run_ranks(two, [&](comm::Group& group) {
      Rank& rank = *ranks[static_cast<size_t>(group.rank())];
      TrainingStep step(rank.network, rank.sharding, group);
      shard::BatchOrder order(shard::all_rows(data_.rows()), experiment_.train.batch, experiment_.train.seed);
      shard::Batch batches[2];
      for (uint64_t s : {0, 1}) batches[s].assign(data_, order.rows(s), true);
      const float rate = experiment_.train.learning_rate;
      EXPECT_NO_THROW(step.run(batches[0], 0, rate, false, &batches[1]));
      EXPECT_THROW(step.run(batches[1], 1, rate, false), PeerError);
    });
    EXPECT_EQ(state_of(ranks), state);
  }
}

TEST_P(FailedStepTest, AnInterruptedStepChangesNothing) {
  auto ranks = two_ranks();
  auto groups = make_groups(2);
  train(ranks, groups, data_, 0, kStepsBefore);
  const auto state = state_of(ranks);
  for (size_t r = 0; r < 2; ++r) {
    groups[r]->interrupt("for the test");
    EXPECT_THROW(attempt(*ranks[r], *groups[r]), Interrupted);
  }
  EXPECT_EQ(state_of(ranks), state);
}

TEST_P(FailedStepTest, AStepWithoutAFiniteLossChangesNothing) {
  auto ranks = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 1), 1);
  auto groups = make_groups(1);
  train(ranks, groups, data_, 0, kStepsBefore);
  for (shard::Modelet* modelet : ranks[0]->network.output().modelets())
    for (size_t r = 0; modelet->parameters().has_bias() && r < modelet->parameters().rows(); ++r)
      modelet->parameters().bias(r) = std::numeric_limits<float>::infinity();
  const auto state = state_of(ranks);
  try {
    attempt(*ranks[0], *groups[0]);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("diverged"), std::string::npos) << error.what();
  }
  EXPECT_EQ(state_of(ranks), state);
}

INSTANTIATE_TEST_SUITE_P(Modes, FailedStepTest, ::testing::ValuesIn(all_values<SamplingMode>()));

}  // namespace
}  // namespace modelet::agent::testing
