// Replicas compared with one model. If exact changes are exchanged after every step, R replicas are one model
// whose batch is R times as large. Lossy changes lose nothing in the long run. Settled replicas are equal to
// the bit.
#include "node_agent/replicas/replica_sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "shard/synth/synth.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

using ::testing::HasSubstr;

struct Case {
  SamplingMode mode = SamplingMode::kUniform;
  OptimizerKind optimizer = OptimizerKind::kAdam;
  Precision precision = Precision::kFp32;
  bool centroids = false;
};

class ReplicaSyncTest : public ::testing::TestWithParam<Case> {
 protected:
  ReplicaSyncTest() {
    // 192 samples give whole batches of 24 and of 48.
    shard::write_synth(
        {.rows_train = 192, .rows_test = 1, .features = 150, .labels = 120, .features_per_row = 12},
        folder_.path(), false);
    data_ = shard::Dataset::open(folder_ / "train.mlt");
    shape_ = {.features = data_.features(), .labels = data_.labels(), .labels_per_row = 3};
    experiment_.model.hidden = {32, 16};
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 5};
    experiment_.sampling.uniform = 30;
    experiment_.sampling.top = 10;
    experiment_.sampling.tables = 8;
    experiment_.sampling.bits = 4;
    experiment_.sampling.rehash_every = 4;
    experiment_.exchange.codec = CodecKind::kNone;
    experiment_.train.batch = 24;
    experiment_.train.learning_rate = 0.01f;
  }

  // Called on each rank after each step.
  using AfterStep = std::function<void(ReplicaSync&, RankGrid&, uint64_t step)>;

  // Trains replicas of `ranks` ranks each; returns the mean of their losses in each step.
  std::vector<double> train(uint32_t replicas, int ranks, uint64_t steps, const AfterStep& after_step) {
    experiment_.cluster.replicas = replicas;
    const int size = static_cast<int>(replicas) * ranks;
    const std::vector<uint32_t> owner = round_robin(experiment_, shape_, ranks);
    ranks_.clear();
    for (int rank = 0; rank < size; ++rank)
      ranks_.push_back(std::make_unique<Rank>(experiment_, shape_, owner, rank % ranks, ranks,
                                              rank == 0 ? kSeveralThreads : 1));
    if (experiment_.model.centroids) build_pairs(ranks_, data_);
    auto groups = make_groups(size);
    std::vector<std::vector<double>> losses(static_cast<size_t>(size));
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      const auto self = static_cast<size_t>(group.rank());
      Rank& rank = *ranks_[self];
      RankGrid grid(group, replicas);
      ReplicaSync sync(rank.network);
      TrainingStep step(rank.network, rank.sharding, grid.replica());
      const Experiment::Train& options = experiment_.train;
      shard::BatchOrder order(shard::all_rows(data_.rows()), size_t{options.batch} * replicas, options.seed);
      shard::Batch batch;
      for (uint64_t s = 0; s < steps; ++s) {
        const shard::BatchShare share{static_cast<uint32_t>(group.rank() / ranks), replicas};
        const std::span<const uint32_t> rows = order.rows(s);
        batch.assign(data_, shard::share_of(rows, share), true, {options.input_dropout, options.seed, s},
                     shard::first_place(rows.size(), share));
        losses[self].push_back(step.run(batch, s, options.learning_rate, false).loss);
        after_step(sync, grid, s + 1);
      }
    });
    std::vector<double> means(steps, 0);
    for (size_t rank = 0; rank < losses.size(); rank += static_cast<size_t>(ranks))
      for (uint64_t s = 0; s < steps; ++s) means[s] += losses[rank][s] / replicas;
    return means;
  }

  std::vector<std::byte> state(size_t rank) {
    ranks_[rank]->network.output().wait_for_rehash();
    std::vector<std::byte> all;
    for (const auto& modelet : ranks_[rank]->network.modelets()) {
      const std::vector<std::byte> one = state_of(*modelet);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  TemporaryFolder folder_;
  shard::Dataset data_;
  DataShape shape_;
  Experiment experiment_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // of the last train()
};

// This also holds with dropout: the mask of a sample depends on its place in the batch of all replicas.
TEST_F(ReplicaSyncTest, OfEveryStepTheyAreOneNodeWithALargerBatch) {
  constexpr uint64_t kSteps = 16;
  experiment_.sampling.mode = SamplingMode::kFull;  // active sets would depend on the batch
  experiment_.optimizer = {.kind = OptimizerKind::kSgd, .momentum = 0};
  experiment_.train.learning_rate = 0.3f;
  for (const auto& [loss, dropout, centroids] : {std::tuple(Loss::kSoftmax, 0.0f, false),
                                                 {Loss::kSoftmax, 0.25f, false},
                                                 {Loss::kSigmoid, 0.0f, false},
                                                 {Loss::kSigmoid, 0.0f, true}}) {
    experiment_.model.loss = loss;
    experiment_.model.centroids = centroids;
    experiment_.train.input_dropout = experiment_.train.hidden_dropout = dropout;
    experiment_.train.batch = 48;
    const std::vector<double> one = train(1, 1, kSteps, [](ReplicaSync&, RankGrid&, uint64_t) {});
    EXPECT_LT(one.back(), 0.97 * one.front()) << "nothing is learned";
    for (const auto& [replicas, ranks] : {std::pair(2, 1), {2, 3}, {4, 1}}) {
      experiment_.train.batch = 48 / static_cast<uint32_t>(replicas);
      const std::vector<double> several =
          train(static_cast<uint32_t>(replicas), ranks, kSteps,
                [](ReplicaSync& sync, RankGrid& grid, uint64_t step) { sync.average(grid, step, false); });
      for (uint64_t s = 0; s < kSteps; ++s)
        ASSERT_NEAR(several[s], one[s], 1e-4 * one[s])
            << replicas << " x " << ranks << ", dropout " << dropout << ", centroids " << centroids
            << ", step " << s;
    }
  }
}

// Two replicas train on the same samples with the same draws. Only random rounding differs, of weights in
// bf16 or of gradients that travel.
TEST_F(ReplicaSyncTest, EachReplicaRoundsForItself) {
  experiment_.sampling.mode = SamplingMode::kFull;
  for (const auto& [precision, codec] : {std::pair(Precision::kFp32, CodecKind::kNone),
                                         {Precision::kBf16, CodecKind::kNone},
                                         {Precision::kFp32, CodecKind::kInt4}}) {
    experiment_.model.precision = precision;
    experiment_.exchange.codec = codec;
    const auto trained_at = [&](size_t first_place) {
      auto ranks = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 2), 2);
      auto groups = make_groups(2);
      comm::testing::run_ranks(groups, [&](comm::Group& group) {
        Rank& rank = *ranks[static_cast<size_t>(group.rank())];
        TrainingStep step(rank.network, rank.sharding, group);
        shard::BatchOrder order(shard::all_rows(data_.rows()), experiment_.train.batch, 1);
        shard::Batch batch;
        for (uint64_t s = 0; s < 3; ++s) {
          batch.assign(data_, order.rows(s), true, {}, first_place);
          step.run(batch, s, experiment_.train.learning_rate, false);
        }
      });
      return state_of(ranks);
    };
    const bool by_chance = precision == Precision::kBf16 || codec != CodecKind::kNone;
    EXPECT_EQ(trained_at(24) != trained_at(0), by_chance);
    EXPECT_EQ(trained_at(24), trained_at(24));
  }
}

TEST_P(ReplicaSyncTest, SettledReplicasAreEqualToTheBit) {
  experiment_.sampling.mode = GetParam().mode;
  experiment_.optimizer.kind = GetParam().optimizer;
  experiment_.model.precision = GetParam().precision;
  experiment_.model.centroids = GetParam().centroids;
  for (const CodecKind codec : {CodecKind::kInt8, CodecKind::kInt4}) {
    experiment_.exchange.codec = codec;
    const auto settle_at_the_end = [](ReplicaSync& sync, RankGrid& grid, uint64_t step) {
      if (step == 8)
        sync.synchronise_exactly(grid, step, false);
      else if (step % 3 == 0)
        sync.average(grid, step, false);
    };
    train(3, 2, 8, settle_at_the_end);
    for (size_t index = 0; index < 2; ++index)
      for (size_t replica = 1; replica < 3; ++replica)
        EXPECT_TRUE(state(replica * 2 + index) == state(index)) << spelling(codec) << ", replica " << replica;
    // Without settling they differ, so the test can fail.
    train(3, 2, 8, [](ReplicaSync& sync, RankGrid& grid, uint64_t step) {
      if (step % 3 == 0) sync.average(grid, step, false);
    });
    EXPECT_FALSE(state(2) == state(0));
  }
}

// With masked sums as well, and they learn what replicas learn that send rows.
TEST_P(ReplicaSyncTest, MaskedReplicasAreEqualToTheBit) {
  experiment_.sampling.mode = GetParam().mode;
  experiment_.optimizer.kind = GetParam().optimizer;
  experiment_.model.precision = GetParam().precision;
  if (GetParam().centroids) return;  // nobody has the pairs of all samples
  const auto settle = [](bool masked) {
    return [masked](ReplicaSync& sync, RankGrid& grid, uint64_t step) {
      if (step == 1 && masked) grid.agree_on_masks(0);
      if (step % 8 == 0)
        sync.synchronise_exactly(grid, step, false);
      else if (step % 2 == 0)
        sync.average(grid, step, false);
    };
  };
  const std::vector<double> by_rows = train(3, 2, 16, settle(false)), masked = train(3, 2, 16, settle(true));
  for (size_t index = 0; index < 2; ++index)
    for (size_t replica = 1; replica < 3; ++replica) EXPECT_TRUE(state(replica * 2 + index) == state(index)) << replica;
  for (size_t step = 0; step < 8; ++step) EXPECT_NEAR(masked[step], by_rows[step], 0.01 * by_rows[step]) << step;
  EXPECT_LT(masked.back(), masked.front());
}

INSTANTIATE_TEST_SUITE_P(Cases, ReplicaSyncTest,
                         ::testing::Values(Case{}, Case{.mode = SamplingMode::kLsh},
                                           Case{.mode = SamplingMode::kLshPerSample,
                                                .optimizer = OptimizerKind::kAdagrad},
                                           Case{.optimizer = OptimizerKind::kSgd}, Case{.centroids = true},
                                           Case{.mode = SamplingMode::kLsh, .precision = Precision::kBf16}));

// ---- Averaging by itself: rows are changed by hand

// Changes one input row of a replica, and its clock.
void add_to_row(Rank& rank, size_t row, const std::function<float(size_t column)>& change) {
  shard::Parameters& p = rank.network.modelets_of_layer(0)[0]->parameters();
  std::vector<float> values(p.cols());
  for (size_t c = 0; c < p.cols(); ++c) values[c] = p.floats().row(row)[c] + change(c);
  p.set_row(row, values.data());
  ++p.clock(row);
}

// Sets a number of the optimiser's state of an input row.
void set_state(Rank& rank, std::string_view name, size_t row, float value) {
  for (const auto& array : rank.network.modelets_of_layer(0)[0]->parameters().arrays())
    if (array.name == name) std::memcpy(array.first + row * array.stride_bytes, &value, sizeof value);
}

class AveragingTest : public ReplicaSyncTest {
 protected:
  const float* row_of(size_t rank, size_t row) const {
    return ranks_[rank]->network.modelets_of_layer(0)[0]->parameters().floats().row(row);
  }
  size_t cols() const { return experiment_.modelets.hidden_columns; }

  // Runs `rounds` rounds: `change` on both replicas, then average(). In the last round synchronise_exactly() follows if
  // `exact` is set.
  void average(int rounds, const std::function<void(Rank&, size_t replica, int round)>& change,
               bool synchronise_exactly = false) {
    experiment_.cluster.replicas = 2;
    ranks_ = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 1), 1);
    ranks_.push_back(
        std::make_unique<Rank>(experiment_, shape_, round_robin(experiment_, shape_, 1), 0, 1, 1));
    auto groups = make_groups(2);
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      const auto self = static_cast<size_t>(group.rank());
      RankGrid grid(group, 2);
      ReplicaSync sync(ranks_[self]->network);
      for (int round = 0; round < rounds; ++round) {
        change(*ranks_[self], self, round);
        if (synchronise_exactly && round + 1 == rounds)
          sync.synchronise_exactly(grid, static_cast<uint64_t>(round), false);
        else
          sync.average(grid, static_cast<uint64_t>(round), false);
      }
    });
  }
};

// Averaging moves weight from one replica to the other and loses none, however coarse the codec is: what
// rounding keeps back stays where it was. What is kept back never grows beyond a step of the codec.
TEST_F(AveragingTest, WhatRoundingKeepsBackIsNotLost) {
  constexpr int kRounds = 200;
  constexpr size_t kRow = 7;
  const auto change = [](size_t replica, size_t column, int round) {
    Rng rng(5, {replica, column, static_cast<uint64_t>(round)});
    return 0.01f * static_cast<float>(1 + column) * (0.5f + rng.normal());  // a drift, and noise
  };
  for (const CodecKind codec : {CodecKind::kNone, CodecKind::kInt8, CodecKind::kInt4}) {
    experiment_.exchange.codec = codec;
    std::vector<double> sum(cols(), 0);
    for (size_t c = 0; c < cols(); ++c)
      for (int round = 0; round < kRounds; ++round) sum[c] += change(0, c, round) + change(1, c, round);
    std::vector<double> before(cols());
    average(kRounds, [&](Rank& rank, size_t replica, int round) {
      if (replica == 0 && round == 0)
        for (size_t c = 0; c < cols(); ++c)
          before[c] = rank.network.modelets_of_layer(0)[0]->parameters().floats().row(kRow)[c];
      add_to_row(rank, kRow, [&](size_t column) { return change(replica, column, round); });
    });
    for (size_t c = 0; c < cols(); ++c) {
      const double mean = (row_of(0, kRow)[c] + row_of(1, kRow)[c]) / 2.0;
      EXPECT_NEAR(mean, before[c] + sum[c] / 2, 1e-3) << spelling(codec) << ", column " << c;
      const double largest = 0.01 * 16 * 4;  // about the largest change of the row
      const double step = codec == CodecKind::kNone   ? 1e-5
                          : codec == CodecKind::kInt8 ? largest / 127
                                                      : largest / 7;
      EXPECT_LT(std::abs(row_of(0, kRow)[c] - row_of(1, kRow)[c]), 3 * step)
          << spelling(codec) << ", column " << c;
    }
  }
}

TEST_F(AveragingTest, ARowThatOneReplicaUpdated) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam}) {
    experiment_.optimizer.kind = kind;
    std::vector<float> before(cols());
    average(1, [&](Rank& rank, size_t replica, int) {
      if (replica != 1) return;
      const float* row = rank.network.modelets_of_layer(0)[0]->parameters().floats().row(7);
      std::copy_n(row, cols(), before.data());
      add_to_row(rank, 7, [](size_t) { return 1.0f; });
    });
    const float share = kind == OptimizerKind::kSgd ? 0.5f : 1.0f;
    for (size_t replica = 0; replica < 2; ++replica)
      for (size_t c = 0; c < cols(); ++c) EXPECT_NEAR(row_of(replica, 7)[c], before[c] + share, 1e-6);
  }
}

// Settling loses nothing of what a codec has kept back, and does not share it with a replica that had no part
// in it: the sum is the same as with exact changes.
TEST_F(AveragingTest, SettlingGivesWhatWasKeptBackTheShareThatItHad) {
  constexpr size_t kRow = 7;
  const auto change = [](size_t replica, size_t column) { return Rng(9, {replica, column}).normal(); };
  // The round in which each replica changes the row once: both in the same round, or one after the other.
  for (const std::array<int, 2> when : {std::array{0, 0}, {0, 1}, {1, 0}})
    for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam})
      for (const CodecKind codec : {CodecKind::kNone, CodecKind::kInt8, CodecKind::kInt4}) {
        experiment_.optimizer.kind = kind;
        experiment_.exchange.codec = codec;
        std::vector<float> before(cols());
        average(
            3,
            [&](Rank& rank, size_t replica, int round) {
              if (replica == 0 && round == 0)
                std::copy_n(rank.network.modelets_of_layer(0)[0]->parameters().floats().row(kRow), cols(),
                            before.data());
              if (round == when[replica])
                add_to_row(rank, kRow, [&](size_t column) { return change(replica, column); });
            },
            true);
        const float share = kind == OptimizerKind::kSgd || when[0] == when[1] ? 0.5f : 1.0f;
        for (size_t c = 0; c < cols(); ++c)
          for (size_t replica = 0; replica < 2; ++replica)
            EXPECT_NEAR(row_of(replica, kRow)[c], before[c] + share * (change(0, c) + change(1, c)), 1e-5)
                << spelling(codec) << ", rounds " << when[0] << " and " << when[1] << ", column " << c;
      }
}

// Notes what a rank sends.
class RecordingTransport final : public comm::Transport {
 public:
  using Sent = std::vector<std::vector<std::byte>>;
  RecordingTransport(std::unique_ptr<comm::Transport> inner, Sent& sent) : inner_(std::move(inner)), sent_(sent) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void send(std::span<const int> to, const comm::RecycledPtr<comm::Message>& message) override {
    sent_.emplace_back(message->payload.begin(), message->payload.end());
    inner_->send(to, message);
  }
  bool receive(double seconds, comm::Frame& frame) override { return inner_->receive(seconds, frame); }
  void interrupt(const std::string& reason) override { inner_->interrupt(reason); }

 private:
  std::unique_ptr<comm::Transport> inner_;
  Sent& sent_;
};

// Whether this rank has sent the same to several ranks.
bool is_sent_to_all(const RecordingTransport::Sent& sent, const std::vector<std::byte>& message) {
  return std::ranges::count(sent, message) > 1;
}

// Replicas of different weight. Rows 7 and 8 of the input layer are changed by hand.
class WeightedTest : public AveragingTest {
 protected:
  static constexpr size_t kShared = 7, kSingle = 8;  // changed by replicas 0 and 1; by replica 2 only
  std::vector<uint64_t> weights_ = {400, 100, 250};

  WeightedTest() { experiment_.exchange.codec = CodecKind::kNone; }

  float change(size_t replica, size_t column) const { return change_seeds_[replica] == 0 ? 0 : Rng(change_seeds_[replica], {column}).normal(); }

  // Calls `work` on each replica. `capped`: the most that a weight counts.
  using Work = std::function<void(size_t self, RankGrid& grid, ReplicaSync& sync)>;
  void on_each(bool masked, const Work& work, uint64_t capped = 1000) {
    const auto replicas = static_cast<uint32_t>(weights_.size());
    experiment_.cluster.replicas = replicas;
    ranks_.clear();
    sent_.assign(replicas, {});
    std::vector<std::unique_ptr<comm::Group>> groups;
    for (auto& transport : comm::make_inproc_transports(static_cast<int>(replicas))) {
      ranks_.push_back(std::make_unique<Rank>(experiment_, shape_, round_robin(experiment_, shape_, 1), 0, 1, 1));
      groups.push_back(std::make_unique<comm::Group>(
          std::make_unique<RecordingTransport>(std::move(transport), sent_[groups.size()]),
          comm::GroupOptions{.run = 1}));
    }
    before_.assign(2, std::vector<float>(cols()));
    for (const size_t row : {kShared, kSingle}) std::copy_n(row_of(0, row), cols(), before_[row - kShared].data());
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      const auto self = static_cast<size_t>(group.rank());
      RankGrid grid(group, replicas);
      grid.share_weights(0, std::min(weights_[self], capped));
      if (masked) grid.agree_on_masks(0);
      ReplicaSync sync(ranks_[self]->network);
      try {
        work(self, grid, sync);
      } catch (const std::exception& error) {  // the others would wait for it
        for (const auto& other : groups) other->interrupt(std::string("a replica has failed: ") + error.what());
        throw;
      }
    });
  }

  // One round, after which synchronise_exactly() was called if `exact` is set.
  void synchronise(bool masked, bool exact, uint64_t capped = 1000) {
    on_each(
        masked,
        [&](size_t self, RankGrid& grid, ReplicaSync& sync) {
          add_to_row(*ranks_[self], self < 2 ? kShared : kSingle, [&](size_t column) { return change(self, column); });
          if (exact)
            sync.synchronise_exactly(grid, 1, false);
          else
            sync.average(grid, 1, false);
        },
        capped);
  }

  std::vector<uint64_t> change_seeds_ = {1, 2, 3};
  std::vector<std::vector<float>> before_;         // [rows]
  std::vector<RecordingTransport::Sent> sent_;  // [replicas]
};

TEST_F(WeightedTest, TheMeanIsThatOfTheSamples) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam})
    for (const bool masked : {false, true})
      for (const uint64_t capped : {uint64_t{1000}, uint64_t{200}, uint64_t{1}}) {
        experiment_.optimizer.kind = kind;
        synchronise(masked, false, capped);
        double of_all = 0;
        const auto weight = [&](size_t replica) { return static_cast<double>(std::min(weights_[replica], capped)); };
        for (const size_t replica : {0u, 1u, 2u}) of_all += weight(replica);
        const bool sgd = kind == OptimizerKind::kSgd;
        for (size_t c = 0; c < cols(); ++c) {
          const double shared = (weight(0) * change(0, c) + weight(1) * change(1, c)) /
                                (sgd ? of_all : weight(0) + weight(1));
          const double single = sgd ? weight(2) * change(2, c) / of_all : change(2, c);
          for (const size_t replica : {0u, 1u, 2u}) {
            ASSERT_NEAR(row_of(replica, kShared)[c], before_[0][c] + shared, 1e-6) << masked << ' ' << capped;
            ASSERT_NEAR(row_of(replica, kSingle)[c], before_[1][c] + single, 1e-6) << masked << ' ' << capped;
          }
        }
      }
}

// The reference has no replicas: the mean of each round by the definition of each rule.
TEST_F(WeightedTest, TheRuleOfTheMean) {
  constexpr size_t kRounds = 4;
  Experiment::Cluster& cluster = experiment_.cluster;
  cluster.rule_rate = 0.3f;
  const auto in_round = [&](size_t round, size_t replica, size_t column) {
    return 0.1f * Rng(5, {round, replica, column}).normal();
  };
  const auto mean = [&](size_t round, size_t column) {
    return (400.0 * in_round(round, 0, column) + 100.0 * in_round(round, 1, column)) / 500;
  };
  for (const MeanRule rule : all_values<MeanRule>())
    for (const bool masked : {false, true}) {
      cluster.rule = rule;
      float bias_before = 0;
      const auto output = [&](size_t self) -> shard::Parameters& {
        return ranks_[self]->network.modelets_of_layer(2)[0]->parameters();
      };
      on_each(masked, [&](size_t self, RankGrid& grid, ReplicaSync& sync) {
        if (self == 0) bias_before = output(self).bias(3);
        for (size_t round = 0; round < kRounds; ++round) {
          if (self < 2) {
            add_to_row(*ranks_[self], kShared, [&](size_t column) { return in_round(round, self, column); });
            output(self).bias(3) += in_round(round, self, 0);
            ++output(self).clock(3);
          }
          sync.average(grid, round, false);
        }
        sync.synchronise_exactly(grid, kRounds, false);
      });
      const auto expected = [&](double weight, size_t column) {
        double first = 0, second = 0;
        for (size_t round = 0; round < kRounds; ++round) {
          const double change = mean(round, column);
          switch (rule) {
            case MeanRule::kAverage:
            case MeanRule::kProx:
              weight += change;
              break;
            case MeanRule::kAdam:
              first = 0.9 * first + 0.1 * change;
              second = 0.99 * second + 0.01 * change * change;
              weight += 0.3 * first / (std::sqrt(second) + 1e-3);
              break;
            case MeanRule::kMomentum:
              first = 0.9 * first + change;
              weight += 0.3 * (change + 0.9 * first);
          }
        }
        return weight;
      };
      for (const size_t replica : {0u, 1u, 2u}) {
        for (size_t c = 0; c < cols(); ++c)
          ASSERT_NEAR(row_of(replica, kShared)[c], expected(before_[0][c], c), 2e-5) << spelling(rule) << ' ' << masked;
        EXPECT_NEAR(output(replica).bias(3), expected(bias_before, 0), 2e-5) << spelling(rule) << ' ' << masked;
      }
    }
}

TEST_F(WeightedTest, AProximalStepShortensTheDistance) {
  experiment_.cluster.proximal = 20;
  for (const MeanRule rule : all_values<MeanRule>()) {
    experiment_.cluster.rule = rule;
    on_each(false, [&](size_t self, RankGrid&, ReplicaSync& sync) {
      if (self != 0) return;
      for (const int step : {1, 2}) {
        add_to_row(*ranks_[0], kShared, [&](size_t) { return 1.0f; });
        sync.pull_back(0, static_cast<uint64_t>(step), 0.1f);
      }
    });
    const double kept = rule == MeanRule::kProx ? 1.0 / 3 / 3 + 1.0 / 3 : 2;
    for (size_t c = 0; c < cols(); ++c) {
      EXPECT_NEAR(row_of(0, kShared)[c], before_[0][c] + kept, 1e-6) << spelling(rule);
      EXPECT_EQ(row_of(0, kSingle)[c], before_[1][c]);
    }
  }
}

// ---- Rounds of some replicas

TEST(ParticipantsOfRound, AreDrawnAnewAndEvenly) {
  constexpr size_t kReplicas = 5, kCount = 3, kRounds = 4000;
  std::array<double, kReplicas> drawn{};
  std::array<std::array<double, kReplicas>, kReplicas> together{};
  for (uint64_t step = 0; step < kRounds; ++step) {
    const ReplicaSet set = participants_of_round(1, step, kReplicas, kCount);
    ASSERT_EQ(static_cast<size_t>(std::ranges::count(set, 1)), kCount);
    for (size_t a = 0; a < kReplicas; ++a) drawn[a] += set[a];
    for (size_t a = 0; a < kReplicas; ++a)
      for (size_t b = 0; b < a; ++b) together[a][b] += set[a] & set[b];
    EXPECT_EQ(participants_of_round(1, step, kReplicas, kCount), set);
  }
  for (size_t a = 0; a < kReplicas; ++a) {
    EXPECT_NEAR(drawn[a], 0.6 * kRounds, 5 * std::sqrt(0.24 * kRounds));
    for (size_t b = 0; b < a; ++b) EXPECT_NEAR(together[a][b], 0.3 * kRounds, 5 * std::sqrt(0.21 * kRounds));
  }
  EXPECT_NE(participants_of_round(1, 0, 50, 25), participants_of_round(2, 0, 50, 25));
  for (const size_t count : {0u, 5u, 9u}) EXPECT_EQ(participants_of_round(1, 0, kReplicas, count), ReplicaSet(kReplicas, 1));
}

// Two of three take part in each round; who, is seen from the row that each of them changes alone.
TEST_F(WeightedTest, OnlyThoseThatTakePartAreInTheMean) {
  constexpr size_t kFirstOwn = 20;  // a row for each replica
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam})
    for (const bool masked : {false, true}) {
      experiment_.optimizer.kind = kind;
      std::vector<ReplicaSet> sets;  // of rounds
      std::vector<std::vector<float>> before;
      on_each(masked, [&](size_t self, RankGrid& grid, ReplicaSync& sync) {
        if (self == 0)
          for (const size_t row : {kShared, kFirstOwn, kFirstOwn + 1, kFirstOwn + 2})
            before.emplace_back(row_of(0, row), row_of(0, row) + cols());
        for (uint64_t round = 0; round < 6; ++round) {
          grid.draw_participants(5, round, 2);
          if (self == 0) sets.push_back(grid.participants());
          if (grid.takes_part()) {
            add_to_row(*ranks_[self], kShared, [&](size_t column) { return change(self, column); });
            add_to_row(*ranks_[self], kFirstOwn + self, [&](size_t column) { return change(self, column); });
          }
          sync.average(grid, round, false);
        }
        grid.draw_participants(5, 6, 2);
        sync.synchronise_exactly(grid, 6, false);
      });
      std::vector<std::vector<double>> expected(4);
      for (size_t i = 0; i < 4; ++i) expected[i].assign(before[i].begin(), before[i].end());
      for (const ReplicaSet& set : sets) {
        double all = 0;
        for (const size_t replica : {0u, 1u, 2u}) all += set[replica] * static_cast<double>(weights_[replica]);
        for (const size_t replica : {0u, 1u, 2u})
          for (size_t c = 0; set[replica] != 0 && c < cols(); ++c) {
            const double share = static_cast<double>(weights_[replica]) / all;
            expected[0][c] += share * change(replica, c);
            expected[1 + replica][c] += (kind == OptimizerKind::kSgd ? share : 1) * change(replica, c);
          }
      }
      EXPECT_NE(sets[0], sets[1]) << "else the test says less";
      for (const size_t replica : {0u, 1u, 2u}) {
        for (size_t i = 0; i < 4; ++i)
          for (size_t c = 0; c < cols(); ++c)
            ASSERT_NEAR(row_of(replica, i == 0 ? kShared : kFirstOwn + i - 1)[c], expected[i][c], 1e-5) << masked << ' ' << i;
        EXPECT_TRUE(state(replica) == state(0)) << masked;
      }
    }
}

// A replica that takes no part sends nothing of its rows.
TEST_F(WeightedTest, WhoTakesNoPartSendsNoRows) {
  std::array<double, 3> bytes{};
  ReplicaSet set;
  on_each(true, [&](size_t self, RankGrid& grid, ReplicaSync& sync) {
    grid.draw_participants(5, 0, 2);
    if (self == 0) set = grid.participants();
    sent_[self].clear();
    sync.average(grid, 0, false);
    for (const auto& message : sent_[self]) bytes[self] += static_cast<double>(message.size());
  });
  const size_t absent = static_cast<size_t>(std::ranges::find(set, 0) - set.begin());
  for (const size_t replica : {0u, 1u, 2u}) {
    if (replica == absent) continue;
    EXPECT_NEAR(bytes[absent], 0.5 * bytes[replica], 0.1 * bytes[replica]) << "only sums of its part";
  }
}

TEST_F(WeightedTest, WhatAReplicaClaimsToWeighIsCutByAll) {
  experiment_.cluster.replicas = 3;
  auto groups = make_groups(3);
  std::vector<std::vector<float>> weights(3);
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    RankGrid grid(group, 3);
    // Replica 2 says a million and does not cut it.
    grid.share_weights(0, group.rank() == 2 ? 1'000'000 : 100, group.rank() == 2 ? 0 : 200);
    weights[static_cast<size_t>(group.rank())].assign(grid.weights().begin(), grid.weights().end());
  });
  EXPECT_EQ(weights[0], (std::vector<float>{0.5f, 0.5f, 1}));
  EXPECT_EQ(weights[1], weights[0]);
}

// ---- Noise

class NoiseTest : public WeightedTest {
 protected:
  NoiseTest() {
    experiment_.cluster.clip = 2;
    experiment_.cluster.noise = 1.5f;
  }
  // All weights and biases of a rank.
  std::vector<double> all_of(size_t rank) const {
    std::vector<double> all;
    for (const auto& modelet : ranks_[rank]->network.modelets()) {
      const shard::Parameters& p = modelet->parameters();
      for (size_t r = 0; r < p.rows(); ++r) {
        all.insert(all.end(), p.floats().row(r), p.floats().row(r) + p.cols());
        if (p.has_bias()) all.push_back(p.bias(r));
      }
    }
    return all;
  }
  // What one round adds, in which each replica changes all columns of a row by `changes[replica]`.
  std::vector<double> added(const std::vector<float>& changes) {
    std::vector<double> before;
    on_each(true, [&](size_t self, RankGrid& grid, ReplicaSync& sync) {
      if (self == 0) before = all_of(0);
      add_to_row(*ranks_[self], kShared, [&](size_t) { return changes[self]; });
      sync.average(grid, 1, false);
      clipped_[self] = sync.own_clipped();
    });
    for (const size_t replica : {1u, 2u}) EXPECT_EQ(all_of(replica), all_of(0));
    std::vector<double> difference = all_of(0);
    for (size_t i = 0; i < difference.size(); ++i) difference[i] -= before[i];
    return difference;
  }
  // The same of the row that was changed alone, in the direction in which it was changed.
  double length_added(const std::vector<float>& changes) {
    added(changes);
    double sum = 0;
    for (size_t c = 0; c < cols(); ++c) sum += row_of(0, kShared)[c] - before_[0][c];
    return sum / std::sqrt(static_cast<double>(cols()));
  }
  double share(size_t replica) const { return static_cast<double>(weights_[replica]) / 750; }
  static double squares(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return sum;
  }

  std::array<uint64_t, 3> clipped_{};
};

// In the sum of shares of changes an owner can change at most clip x its share. Two owners' noise is 1.5 times the largest
// of these, and the third, who knows its own, sees no less.
TEST_F(NoiseTest, HasTheDeviationThatIsPromised) {
  const std::vector<double> noise = added({0, 0, 0});
  const double count = static_cast<double>(noise.size());
  const double of_two = 1.5 * 2 * 400 / 750;
  EXPECT_GT(count, 5000);
  EXPECT_NEAR(squares(noise) / count, of_two * of_two * 3 / 2, of_two * of_two * 3 / 2 * 5 * std::sqrt(2 / count));
  const std::vector<double> other = added({0, 0, 0});
  EXPECT_NE(other, noise) << "nobody can compute it";
}

TEST_F(NoiseTest, TheChangeOfAnOwnerIsShortenedAsAWhole) {
  experiment_.cluster.noise = 0.01f;
  const double tolerance = 5 * std::sqrt(1.5) * 0.01 * 2 * share(0);
  EXPECT_NEAR(length_added({100, 0, 0}), 2 * share(0), tolerance);
  EXPECT_EQ(clipped_, (std::array<uint64_t, 3>{1, 0, 0}));
  EXPECT_NEAR(length_added({0, -70, 0}), -2 * share(1), tolerance);
  const auto small = static_cast<float>(0.5 / std::sqrt(static_cast<double>(cols())));  // not longer than it may be
  EXPECT_NEAR(length_added({0, small, 0}), 0.5 * share(1), tolerance);
  EXPECT_EQ(clipped_, (std::array<uint64_t, 3>{0, 0, 0}));
}

TEST_F(NoiseTest, AClipWithoutNoiseIsExact) {
  experiment_.cluster.noise = 0;
  EXPECT_NEAR(length_added({100, 0, 0}), 2 * share(0), 1e-5);
  EXPECT_NEAR(length_added({0.01f, 0, 0}), 0.01 * std::sqrt(static_cast<double>(cols())) * share(0), 1e-6);
}

// Neither which rows have changed nor how often leaves an owner, nor does the optimiser's state.
TEST_F(NoiseTest, NothingElseIsSent) {
  const auto sums_of = [&](bool learns) {
    std::array<std::vector<std::vector<std::byte>>, 3> messages;
    on_each(true, [&](size_t self, RankGrid& grid, ReplicaSync& sync) {
      if (learns) {
        add_to_row(*ranks_[self], kShared, [&](size_t) { return 1.0f; });
        set_state(*ranks_[self], "optimizer.first", kShared, 3);
      }
      sent_[self].clear();
      sync.synchronise_exactly(grid, 1, false);
      messages[self] = sent_[self];
    });
    std::vector<size_t> sizes;
    for (const auto& message : messages[0]) sizes.push_back(message.size());
    return sizes;
  };
  const auto with = sums_of(true);
  float kept = 1;
  for (const auto& array : ranks_[0]->network.modelets_of_layer(0)[0]->parameters().arrays())
    if (array.name == std::string("optimizer.first"))
      std::memcpy(&kept, array.first + kShared * array.stride_bytes, sizeof kept);
  EXPECT_EQ(kept, 0) << "the checkpoint has no state";
  for (const size_t replica : {0u, 1u, 2u}) {
    EXPECT_TRUE(state(replica) == state(0));
    EXPECT_EQ(ranks_[replica]->network.modelets_of_layer(0)[0]->parameters().clock(kShared), 0u);
  }
  EXPECT_EQ(sums_of(false), with);
  experiment_.cluster.noise = experiment_.cluster.clip = 0;
  EXPECT_NE(sums_of(false), with) << "state travels then, so the test can fail";
}

// ---- Replicas that lie

class LiarTest : public WeightedTest {
 protected:
  static constexpr size_t kLiar = 2;

  // Everybody changes the shared row, and the liar changes it by `lie`. All replicas must be equal afterwards.
  void lie(bool masked, float lie, bool exact) {
    on_each(masked, [&](size_t self, RankGrid& grid, ReplicaSync& sync) {
      add_to_row(*ranks_[self], kShared, [&](size_t column) { return self == kLiar ? lie : change(self, column); });
      if (exact)
        sync.synchronise_exactly(grid, 1, false);
      else
        sync.average(grid, 1, false);
      note(self, sync);
    });
  }
  void note(size_t self, const ReplicaSync& sync) {
    dropped_[self] = shortened_[self] = 0;
    for (size_t replica = 0; replica <= weights_.size(); ++replica) {
      const auto [dropped, shortened] = sync.refusals(replica);
      dropped_[self] += dropped;
      shortened_[self] += shortened;
      if (replica != kLiar) others_[self] += dropped + shortened;
    }
  }
  double of_honest(size_t column) const { return (400.0 * change(0, column) + 100.0 * change(1, column)) / 500; }

  std::array<uint64_t, 3> dropped_{}, shortened_{}, others_{};  // as each replica has counted
};

TEST_F(LiarTest, WhatIsNotFiniteIsNotInTheMean) {
  for (const bool exact : {false, true})
    for (const float number : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30f}) {
      others_ = {};
      lie(false, number, exact);
      for (const size_t replica : {0u, 1u, 2u}) {
        for (size_t c = 0; c < cols(); ++c)
          ASSERT_NEAR(row_of(replica, kShared)[c], before_[0][c] + of_honest(c), 1e-6) << number << ' ' << replica;
        EXPECT_EQ(dropped_[replica], 1u) << number;
        EXPECT_EQ(others_[replica], 0u) << "it is known who lied";
      }
      if (exact) {
        EXPECT_TRUE(state(1) == state(0));
        EXPECT_TRUE(state(2) == state(0));
      }
    }
}

TEST_F(LiarTest, ALongChangeIsShortened) {
  experiment_.cluster.largest_change = 20;
  for (const bool exact : {false, true}) {
    lie(false, 1000, exact);
    const double factor = 20 / (1000 * std::sqrt(static_cast<double>(cols())));
    for (const size_t replica : {0u, 1u, 2u}) {
      EXPECT_EQ(shortened_[replica], 1u);
      EXPECT_EQ(dropped_[replica], 0u);
      for (size_t c = 0; c < cols(); ++c)
        ASSERT_NEAR(row_of(replica, kShared)[c], before_[0][c] + (500 * of_honest(c) + 250 * 1000 * factor) / 750, 1e-4);
    }
  }
  // Of masked sums the sender keeps to the bound, and nobody hears of it.
  on_each(true, [&](size_t self, RankGrid& grid, ReplicaSync& sync) {
    add_to_row(*ranks_[self], kShared, [&](size_t) { return self == kLiar ? 10.0f : 0.0f; });
    sync.average(grid, 1, false);
    note(self, sync);
    EXPECT_EQ(sync.own_shortened(), self == kLiar ? 1u : 0u);
    EXPECT_EQ(dropped_[self] + shortened_[self], 0u);
  });
  const double expected = 250.0 / 750 * 20 / std::sqrt(static_cast<double>(cols()));
  for (const size_t replica : {0u, 1u, 2u}) EXPECT_NEAR(row_of(replica, kShared)[0], before_[0][0] + expected, 1e-5);
}

TEST_F(LiarTest, StateThatMakesNoSenseIsCleared) {
  for (const auto& [name, number] : {std::pair("optimizer.first", std::numeric_limits<float>::quiet_NaN()),
                                     {"optimizer.second", -1.0f},
                                     {"optimizer.second", std::numeric_limits<float>::infinity()}}) {
    on_each(false, [&, name = name, number = number](size_t self, RankGrid& grid, ReplicaSync& sync) {
      if (self == kLiar) {
        add_to_row(*ranks_[self], kSingle, [&](size_t) { return 1.0f; });
        set_state(*ranks_[self], name, kSingle, number);
      }
      sync.synchronise_exactly(grid, 1, false);
      note(self, sync);
    });
    for (const size_t replica : {0u, 1u, 2u}) {
      EXPECT_EQ(dropped_[replica], 1u) << name;
      EXPECT_TRUE(state(replica) == state(0)) << name;
    }
    for (const auto& array : ranks_[0]->network.modelets_of_layer(0)[0]->parameters().arrays())
      if (array.name == std::string(name)) {
        float kept;
        std::memcpy(&kept, array.first + kSingle * array.stride_bytes, sizeof kept);
        EXPECT_EQ(kept, 0) << name;
      }
  }
}

// What a replica has sent in another round, or any numbers but those that belong to this round, leave a sum that says
// nothing: the masks do not cancel. Nobody takes it, and the next round is as if there had been none.
TEST_F(LiarTest, MasksOfAnotherRoundMakeNoSum) {
  for (const bool exact : {false, true}) {
    on_each(true, [&](size_t self, RankGrid& grid, ReplicaSync& sync) {
      if (self == kLiar) grid.masks()->next();
      add_to_row(*ranks_[self], kShared, [&](size_t column) { return change(self, column); });
      if (exact)
        sync.synchronise_exactly(grid, 1, false);
      else
        sync.average(grid, 1, false);
      note(self, sync);
    });
    size_t rows = 0;
    for (const auto& modelet : ranks_[0]->network.modelets()) rows += modelet->parameters().rows();
    for (const size_t replica : {0u, 1u, 2u}) {
      EXPECT_EQ(dropped_[replica], exact ? 2 * rows : rows) << "all rows are random";
      EXPECT_EQ(std::vector(row_of(replica, kShared), row_of(replica, kShared) + cols()), before_[0]);
      EXPECT_TRUE(state(replica) == state(0));
    }
  }
}

// What a replica sends tells nothing of what it has changed, not even which rows: only masked words differ.
TEST_F(WeightedTest, WhatIsSentOfMaskedSumsIsRandom) {
  const auto sizes = [](const RecordingTransport::Sent& sent) {
    std::vector<size_t> bytes;
    for (const auto& message : sent) bytes.push_back(message.size());
    return bytes;
  };
  synchronise(true, true);
  const auto first = sent_;
  change_seeds_[0] = 0;  // replica 0 has another change: none at all
  synchronise(true, true);
  for (const size_t replica : {0u, 1u, 2u}) ASSERT_EQ(sizes(sent_[replica]), sizes(first[replica]));
  size_t differ = 0;
  for (size_t i = 0; i < first[0].size(); ++i) {
    if (first[0][i] == sent_[0][i]) continue;             // weights, sets of rows
    if (is_sent_to_all(first[0], first[0][i])) continue;  // sums: the next test
    ++differ;
    for (const std::vector<std::byte>* message : {&first[0][i], std::as_const(sent_[0]).data() + i}) {
      double set = 0;
      for (const std::byte byte : *message) set += std::popcount(static_cast<uint8_t>(byte));
      const double bits = 8.0 * static_cast<double>(message->size());
      EXPECT_NEAR(set / bits, 0.5, 5 / std::sqrt(bits));
    }
  }
  EXPECT_GT(differ, 4u);
  // Without masks the rows that were not changed do not travel, so the test can fail.
  synchronise(false, true);
  EXPECT_NE(sizes(sent_[0]), sizes(first[0]));
}

// What all get follows from the sum alone, whoever gave what.
TEST_F(WeightedTest, WhatIsSentToAllIsTheSum) {
  const auto sent_to_all = [&](size_t who, float change) {
    on_each(
        true,
        [&](size_t self, RankGrid& grid, ReplicaSync& sync) {
          sent_[self].clear();  // keys are random
          add_to_row(*ranks_[self], kShared, [&](size_t) { return self == who ? change : 0; });
          sync.synchronise_exactly(grid, 1, false);
        },
        1);
    auto sums = sent_;
    for (RecordingTransport::Sent& sent : sums)
      std::erase_if(sent, [all = sent](const auto& message) { return !is_sent_to_all(all, message); });
    return sums;
  };
  const auto first = sent_to_all(0, 1);
  EXPECT_EQ(sent_to_all(1, 1), first);
  EXPECT_EQ(sent_to_all(2, 1), first);
  EXPECT_NE(sent_to_all(0, 2), first) << "else the test says nothing";
}

TEST_F(WeightedTest, MaskedSumsTravelOncePerReplicaAndBack) {
  const auto bytes = [&](size_t replicas) {
    weights_.assign(replicas, 1);
    change_seeds_.assign(replicas, 1);
    on_each(true, [&](size_t self, RankGrid& grid, ReplicaSync& sync) {
      sent_[self].clear();
      sync.average(grid, 1, false);
    });
    double sent = 0;
    for (const auto& message : sent_[0]) sent += static_cast<double>(message.size());
    return sent;
  };
  uint64_t words = 0;
  bytes(3);
  for (const auto& modelet : ranks_[0]->network.modelets()) {
    const shard::Parameters& p = modelet->parameters();
    words += p.rows() * (p.cols() + (p.has_bias() ? 1 : 0) + 2);
  }
  for (const size_t replicas : {3u, 6u}) {
    const double expected = 2.0 * static_cast<double>(replicas - 1) / static_cast<double>(replicas) * 4 *
                            static_cast<double>(words);
    EXPECT_NEAR(bytes(replicas), expected, 0.03 * expected) << replicas;
  }
}

TEST_F(WeightedTest, AChangeThatCannotBeSentIsRefused) {
  change_seeds_[1] = 0;
  const auto spoil = [&](float value) {
    experiment_.cluster.replicas = 2;
    ranks_.clear();
    for (int i = 0; i < 2; ++i)
      ranks_.push_back(std::make_unique<Rank>(experiment_, shape_, round_robin(experiment_, shape_, 1), 0, 1, 1));
    auto groups = make_groups(2);
    std::string text;
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      RankGrid grid(group, 2);
      grid.agree_on_masks(0);
      ReplicaSync sync(ranks_[static_cast<size_t>(group.rank())]->network);
      add_to_row(*ranks_[static_cast<size_t>(group.rank())], kShared, [&](size_t) { return group.rank() == 0 ? value : 0; });
      try {
        sync.average(grid, 1, false);
      } catch (const Error& error) {
        if (group.rank() == 0) text = error.what();
        groups[1 - static_cast<size_t>(group.rank())]->interrupt("the other replica has failed");
      }
    });
    return text;
  };
  EXPECT_THAT(spoil(std::numeric_limits<float>::quiet_NaN()), HasSubstr("training diverged"));
  EXPECT_THAT(spoil(40), HasSubstr("nothing was sent"));
  EXPECT_EQ(spoil(1), "");
}

TEST_F(AveragingTest, OnlyUpdatedRowsTravel) {
  uint64_t bytes[2];
  for (const size_t rows : {size_t{1}, size_t{11}}) {
    experiment_.cluster.replicas = 2;
    ranks_ = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 1), 1);
    ranks_.push_back(
        std::make_unique<Rank>(experiment_, shape_, round_robin(experiment_, shape_, 1), 0, 1, 1));
    auto groups = make_groups(2);
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      RankGrid grid(group, 2);
      Rank& rank = *ranks_[static_cast<size_t>(group.rank())];
      ReplicaSync sync(rank.network);
      for (size_t row = 0; row < rows; ++row) add_to_row(rank, row, [](size_t) { return 1.0f; });
      sync.average(grid, 0, false);
      if (group.rank() == 0) bytes[rows == 1 ? 0 : 1] = grid.totals().bytes_sent;
    });
  }
  // The modelets of the layer share the clock of a row.
  EXPECT_EQ(bytes[1] - bytes[0], 10 * experiment_.model.hidden[0] * sizeof(float));
}

// The set of rows of a peer is data from outside.
TEST_F(AveragingTest, RowsThatDoNotExistAreRefused) {
  experiment_.cluster.replicas = 2;
  ranks_ = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 1), 1);
  size_t words = 0;
  for (const auto& modelet : ranks_[0]->network.modelets()) words += (modelet->parameters().rows() + 31) / 32;
  auto groups = make_groups(2);
  std::string refusal;
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    RankGrid grid(group, 2);
    if (group.rank() == 0) {
      ReplicaSync sync(ranks_[0]->network);
      try {
        sync.average(grid, 0, false);
      } catch (const FormatError& error) {
        refusal = error.what();
      }
      return;
    }
    const std::vector<uint32_t> bits(words + 1, ~0u);
    std::vector<uint32_t> theirs(words + 1);
    const comm::OutBlock out{.bytes = std::as_bytes(std::span(bits))};
    const std::vector<std::vector<comm::InBlock>> in = {{std::as_writable_bytes(std::span(theirs))}, {}};
    grid.peers().all_gather(grid.peer_tags(0), std::span(&out, 1), in);
  });
  EXPECT_THAT(refusal, HasSubstr("rows that its modelets do not have"));
}

}  // namespace
}  // namespace modelet::agent::testing
