// Hash tables and low-rank projections during training. After many re-hashes in the background, or many
// checks for drift, they belong to the present weights, and still find the neurons with the largest logits.
#include <gtest/gtest.h>

#include <algorithm>

#include "node_agent/step/sharded_forward.h"
#include "shard/inference/evaluation.h"
#include "shard/layers/output/active_set.h"
#include "shard/synth/synth.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

class RetrievalTest : public ::testing::TestWithParam<SamplingMode> {
 protected:
  RetrievalTest() {
    shard::write_synth(
        {.rows_train = 1000, .rows_test = 1, .features = 400, .labels = 600, .features_per_row = 15},
        folder_.path(), false);
    data_ = shard::Dataset::open(folder_ / "train.mlt");
    shape_ = {.features = data_.features(), .labels = data_.labels()};
    experiment_.model.hidden = {32};
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 2};
    experiment_.sampling.mode = GetParam();
    experiment_.sampling.uniform = 60;
    experiment_.sampling.tables = 16;
    experiment_.sampling.bits = 5;
    experiment_.sampling.candidates = 60;
    experiment_.sampling.rehash_every = 5;
    experiment_.sampling.common = 0;
    experiment_.sampling.query_every = 1;
    experiment_.sampling.retrieval = RetrievalKind::kTables;
    experiment_.train.batch = 50;
    experiment_.train.learning_rate = 0.01f;
  }

  // The share of the `k` largest logits of 200 samples that retrieval finds.
  double recall(Rank& rank, comm::Group& group, size_t k) const {
    ShardedForward forward(rank.network, rank.sharding, group);
    shard::Batch batch;
    std::vector<uint32_t> rows(200);
    std::iota(rows.begin(), rows.end(), 0u);
    batch.assign(data_, rows, false);
    ShardedPass pass;
    forward.run(batch, {.step = 1000000, .round = round_++}, pass);
    shard::LabelRanker ranker(rank.network.scoring(), rank.pool);
    shard::TopK best;
    ranker.rank_dense(pass.output_input_transposed(), rows.size(), k, best);
    const ConstMatrix hidden = pass.output_input();
    shard::Queries queries;
    std::vector<uint32_t> retrieved;
    size_t found = 0;
    for (const shard::Modelet* modelet : rank.network.output().modelets()) {
      queries.take(*modelet->retrieval(), hidden, rank.pool);
      shard::ActiveSetSampler sampler(*modelet, shard::output_options(experiment_, shape_.labels));
      sampler.retrieve(*modelet, hidden, queries, k, rank.pool, retrieved);
      for (size_t i = 0; i < retrieved.size(); ++i) {
        if (retrieved[i] == shard::ActiveSetSampler::kNone) continue;
        const uint32_t label =
            rank.network.spread().label(static_cast<uint32_t>(modelet->spec().begin) + retrieved[i]);
        found += static_cast<size_t>(std::ranges::count(best.labels(i / k), label));
      }
    }
    return static_cast<double>(found) / static_cast<double>(rows.size() * k);
  }

  TemporaryFolder folder_;
  shard::Dataset data_;
  DataShape shape_;
  Experiment experiment_;
  mutable uint16_t round_ = 0;
};

TEST_P(RetrievalTest, TablesAreThoseOfTheWeightsAtTheLastRehash) {
  experiment_.sampling.drift = 0;
  experiment_.sampling.centre = false;  // then the codes of a row depend only on the row
  auto ranks = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 1), 1);
  auto groups = make_groups(1);
  for (uint64_t first = 0; first < 40; first += experiment_.sampling.rehash_every) {
    train(ranks, groups, data_, first, experiment_.sampling.rehash_every);
    ranks[0]->network.output().wait_for_rehash();
    for (shard::Modelet* modelet : ranks[0]->network.output().modelets()) {
      const shard::Retrieval& retrieval = *modelet->retrieval();
      ASSERT_TRUE(retrieval.rehash_running);
      const hashing::LshIndex& tables = *retrieval.tables;
      hashing::LshIndex fresh(tables.options(), tables.rows());
      fresh.build(modelet->parameters().weights());
      const std::vector<uint32_t> next = tables.next_codes();
      ASSERT_EQ(next, std::vector<uint32_t>(fresh.codes().begin(), fresh.codes().end()))
          << "after step " << first;
      const std::vector<uint32_t> now(tables.codes().begin(), tables.codes().end());
      EXPECT_NE(next, now) << "training changes no code: the test shows nothing";
    }
  }
}

TEST_P(RetrievalTest, RecallStaysThatOfFreshTables) {
  auto ranks = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 1), 1);
  auto groups = make_groups(1), probe = make_groups(1);
  double maintained = 0;
  for (uint64_t first = 0; first < 200; first += 40) {
    train(ranks, groups, data_, first, 40);
    ranks[0]->network.output().wait_for_rehash();
    maintained = recall(*ranks[0], *probe[0], 5);
    Rank fresh(experiment_, shape_, round_robin(experiment_, shape_, 1), 0, 1, 1);
    for (size_t m = 0; m < fresh.network.modelets().size(); ++m) {
      shard::Modelet &from = *ranks[0]->network.modelets()[m], &to = *fresh.network.modelets()[m];
      const auto source = from.parameters().arrays(), target = to.parameters().arrays();
      for (size_t a = 0; a < source.size(); ++a) target[a].unpack(source[a].packed());
      if (to.retrieval() == nullptr) continue;
      to.retrieval()->query_mean = from.retrieval()->query_mean;
      to.retrieval()->tables->build(to.parameters().weights());
    }
    EXPECT_GT(maintained, 0.9 * recall(fresh, *probe[0], 5)) << "after step " << first + 40;
  }
  const double by_chance = 2.0 * experiment_.sampling.candidates / static_cast<double>(shape_.labels);
  EXPECT_GT(maintained, 2 * by_chance);
}

class LowRankTest : public RetrievalTest {
 protected:
  LowRankTest() {
    experiment_.sampling.retrieval = RetrievalKind::kLowRank;
    experiment_.sampling.rank = 16;
  }
};

// Projections are made after the first step, and again at each check that finds drift.
TEST_P(LowRankTest, AreOfTheWeightsAtTheLastLook) {
  for (const float drift : {0.0f, 1.0f}) {
    experiment_.sampling.drift = drift;
    auto ranks = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 1), 1);
    auto groups = make_groups(1);
    train(ranks, groups, data_, 0, 1);
    const auto projections = [&] {
      std::vector<uint16_t> bits;
      for (shard::Modelet* modelet : ranks[0]->network.output().modelets()) {
        EXPECT_TRUE(modelet->retrieval()->low_rank->ready());
        for (const Bf16 value : modelet->retrieval()->low_rank->projections()) bits.push_back(value.bits);
      }
      return bits;
    };
    const auto first = projections();
    train(ranks, groups, data_, 1, experiment_.sampling.rehash_every - 2);
    EXPECT_EQ(projections(), first) << "before the look";
    train(ranks, groups, data_, experiment_.sampling.rehash_every - 1, 1);
    EXPECT_EQ(projections() == first, drift == 1);
  }
}

TEST_P(LowRankTest, FindMostOfTheLargestLogits) {
  auto ranks = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 1), 1);
  auto groups = make_groups(1), probe = make_groups(1);
  for (uint64_t first = 0; first < 200; first += 40) {
    train(ranks, groups, data_, first, 40);
    EXPECT_GT(recall(*ranks[0], *probe[0], 5), 0.8) << "after step " << first + 40;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, LowRankTest, ::testing::Values(SamplingMode::kLsh));
INSTANTIATE_TEST_SUITE_P(Modes, RetrievalTest,
                         ::testing::Values(SamplingMode::kLsh, SamplingMode::kLshPerSample));

}  // namespace
}  // namespace modelet::agent::testing
