#include "shard/layers/output/active_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/experiment/partition.h"

namespace modelet::shard {
namespace {

constexpr size_t kManyLabels = 1000, kHiddenWidth = 16;

Experiment small_experiment(SamplingMode mode) {
  Experiment e;
  e.model.hidden = {kHiddenWidth};
  e.modelets = {.hidden_columns = 16, .output_modelets = 2};
  e.sampling.mode = mode;
  e.sampling.uniform = 101;
  e.sampling.top = 8;
  e.sampling.tables = 24;
  e.sampling.bits = 4;
  e.sampling.candidates = 200;
  e.sampling.bucket = 500;
  e.sampling.common = 0;
  e.sampling.query_every = 1;
  e.sampling.retrieval = RetrievalKind::kTables;
  return e;
}

// A batch of samples with the given labels and no features.
Batch batch_of(const std::vector<std::vector<uint32_t>>& labels) {
  Batch batch;
  batch.offsets.assign(labels.size() + 1, 0);
  batch.label_offsets = {0};
  for (const auto& of_sample : labels) {
    batch.labels.insert(batch.labels.end(), of_sample.begin(), of_sample.end());
    batch.label_offsets.push_back(batch.labels.size());
  }
  return batch;
}

class ActiveSetTest : public ::testing::Test {
 protected:
  void make(SamplingMode mode, float bias = 0, RetrievalKind retrieval = RetrievalKind::kTables) {
    experiment_ = small_experiment(mode);
    experiment_.sampling.retrieval = retrieval;
    const DataShape shape{.features = 10, .labels = kManyLabels};
    for (const ModeletSpec& spec : partition_model(experiment_, shape)) {
      if (spec.kind != LayerKind::kOutput) continue;
      modelets_.push_back(std::make_unique<Modelet>(spec, modelet_options(experiment_, true)));
      modelets_.back()->initialise(bias);
      samplers_.emplace_back(*modelets_.back(), output_options(experiment_, kManyLabels));
    }
    hidden_.resize(64 * kHiddenWidth);
    Rng rng(5);
    for (float& h : hidden_) h = std::max(0.0f, rng.normal());
  }
  const ActiveSet& select(size_t m, const Batch& batch, uint64_t step) {
    const ConstMatrix in = hidden(batch.size());
    if (const Retrieval* retrieval = modelets_[m]->retrieval()) queries_.take(*retrieval, in, pool_);
    return select_with(samplers_[m], *modelets_[m], batch, in, step, pool_);
  }
  const ActiveSet& select_with(ActiveSetSampler& sampler, Modelet& modelet, const Batch& batch,
                               ConstMatrix in, uint64_t step, ThreadPool& pool) {
    Modelet* const one[] = {&modelet};
    labels_.assign(batch, spread_, one);
    return sampler.select(modelet, labels_.of(0), batch.first, in, queries_, step, pool);
  }
  // Makes projections from the 64 samples, with as many directions as the activations have dimensions.
  void make_with_projections() {
    make(SamplingMode::kLsh, 0, RetrievalKind::kLowRank);
    for (const auto& modelet : modelets_)
      modelet->retrieval()->low_rank->build(modelet->parameters(), main_directions(hidden(64), kHiddenWidth),
                                            hidden(64), pool_);
  }
  ConstMatrix hidden(size_t samples) const { return {hidden_.data(), samples, kHiddenWidth, kHiddenWidth}; }

  Experiment experiment_;
  LabelSpread spread_{kManyLabels, 1};
  ThreadPool pool_{2};
  std::vector<std::unique_ptr<Modelet>> modelets_;
  std::vector<ActiveSetSampler> samplers_;
  AlignedVector<float> hidden_;
  BatchLabels labels_;
  Queries queries_;
};

TEST(LabelSpreadTest, IsASeededPermutation) {
  const LabelSpread a(500, 3), same(500, 3), other(500, 4);
  std::set<uint32_t> neurons;
  bool differs = false;
  for (uint32_t label = 0; label < 500; ++label) {
    neurons.insert(a.neuron(label));
    EXPECT_EQ(a.label(a.neuron(label)), label);
    EXPECT_EQ(a.neuron(label), same.neuron(label));
    differs |= a.neuron(label) != other.neuron(label);
  }
  EXPECT_EQ(neurons.size(), 500u);
  EXPECT_TRUE(differs);
}

TEST_F(ActiveSetTest, HasAllLabelsOfItsRangeAndTheAskedNumberOfDraws) {
  make(SamplingMode::kUniform);
  const Batch batch = batch_of({{1, 2, 3}, {}, {3, 500, 999}});
  size_t drawn = 0, targets = 0;
  for (size_t m = 0; m < 2; ++m) {
    const ActiveSet& set = select(m, batch, 7);
    std::set<uint32_t> unique(set.rows.begin(), set.rows.end()), labels;
    EXPECT_EQ(unique.size(), set.rows.size()) << "each neuron once";
    for (const Target& target : set.targets) {
      const uint32_t label =
          spread_.label(static_cast<uint32_t>(modelets_[m]->spec().begin) + set.rows[target.active]);
      const auto first = batch.labels.begin() + static_cast<ptrdiff_t>(batch.label_offsets[target.sample]);
      const auto last = batch.labels.begin() + static_cast<ptrdiff_t>(batch.label_offsets[target.sample + 1]);
      EXPECT_NE(std::find(first, last, label), last);
      labels.insert(label);
      ++targets;
    }
    drawn += set.rows.size() - labels.size();
  }
  EXPECT_EQ(targets, 6u);
  EXPECT_EQ(drawn, 101u);
}

TEST_F(ActiveSetTest, DrawsDependOnStepAndSeedOnly) {
  make(SamplingMode::kUniform);
  const Batch batch = batch_of({{1}});
  const std::vector<uint32_t> first = select(0, batch, 1).rows, second = select(0, batch, 2).rows;
  EXPECT_NE(first, second);
  EXPECT_EQ(select(0, batch, 1).rows, first) << "a repeated step draws the same";
}

TEST_F(ActiveSetTest, ReplicasDrawEachForItself) {
  make(SamplingMode::kUniform);
  Batch batch = batch_of({{1}});
  const std::vector<uint32_t> first = select(0, batch, 1).rows;
  batch.first = 1;  // the second of two replicas, each with one sample
  const std::vector<uint32_t> second = select(0, batch, 1).rows;
  EXPECT_NE(first, second);
  EXPECT_EQ(select(0, batch, 1).rows, second) << "a repeated step draws the same";
}

TEST_F(ActiveSetTest, DrawsAreUniform) {
  make(SamplingMode::kUniform);
  std::vector<int> hits(modelets_[0]->spec().neurons());
  constexpr int kSteps = 4000;
  for (int step = 0; step < kSteps; ++step)
    for (const uint32_t row : select(0, batch_of({{}}), static_cast<uint64_t>(step)).rows) ++hits[row];
  // 50 of 500 rows a step: 400 hits expected, deviation 19.
  for (const int h : hits) EXPECT_NEAR(h, 400, 6 * 19);
}

TEST_F(ActiveSetTest, MoreDrawsThanNeuronsGivesAll) {
  make(SamplingMode::kUniform);
  experiment_.sampling.uniform = 5000;
  ActiveSetSampler sampler(*modelets_[0], output_options(experiment_, kManyLabels));
  EXPECT_EQ(select_with(sampler, *modelets_[0], batch_of({{1, 2}}), hidden(1), 0, pool_).rows.size(), 500u);
}

TEST_F(ActiveSetTest, NearlyAllNeuronsAreDrawnWithoutRepetition) {
  make(SamplingMode::kUniform);
  experiment_.sampling.uniform = 960;
  ActiveSetSampler sampler(*modelets_[0], output_options(experiment_, kManyLabels));
  const auto& rows = select_with(sampler, *modelets_[0], batch_of({{}}), hidden(1), 0, pool_).rows;
  EXPECT_EQ(std::set<uint32_t>(rows.begin(), rows.end()).size(), 480u);
  EXPECT_EQ(rows.size(), 480u);
}

TEST_F(ActiveSetTest, FullModeListsRowsInOrder) {
  make(SamplingMode::kFull);
  const ActiveSet& set = select(1, batch_of({{1, 2, 3}}), 0);
  ASSERT_EQ(set.rows.size(), 500u);
  EXPECT_TRUE(std::is_sorted(set.rows.begin(), set.rows.end()));
}

TEST_F(ActiveSetTest, RetrievedRowsAreMostlyTheBestByBruteForce) {
  make(SamplingMode::kLsh);
  const size_t samples = 64, top = 4;
  EXPECT_EQ(samplers_[0].top(), top) << "8 a sample over two modelets";
  std::vector<uint32_t> best;
  queries_.take(*modelets_[0]->retrieval(), hidden(samples), pool_);
  samplers_[0].retrieve(*modelets_[0], hidden(samples), queries_, top, pool_, best);
  size_t found = 0;
  for (size_t s = 0; s < samples; ++s) {
    std::vector<std::pair<float, uint32_t>> exact;
    for (uint32_t row = 0; row < 500; ++row) {
      float z = 0;
      for (size_t c = 0; c < kHiddenWidth; ++c)
        z += hidden_[s * kHiddenWidth + c] * modelets_[0]->parameters().floats().row(row)[c];
      exact.emplace_back(-z, row);
    }
    std::sort(exact.begin(), exact.end());
    std::set<uint32_t> truth;
    for (size_t i = 0; i < top; ++i) truth.insert(exact[i].second);
    float previous = 1e30f;
    for (size_t i = 0; i < top; ++i) {
      const uint32_t row = best[s * top + i];
      ASSERT_NE(row, ActiveSetSampler::kNone);
      found += truth.count(row);
      float z = 0;
      for (size_t c = 0; c < kHiddenWidth; ++c)
        z += hidden_[s * kHiddenWidth + c] * modelets_[0]->parameters().floats().row(row)[c];
      EXPECT_LE(z, previous + 1e-4f) << "best first";
      previous = z;
    }
  }
  // 200 random candidates of 500 would find 40 %.
  EXPECT_GT(static_cast<double>(found) / (samples * top), 0.75);
}

// Rows with a large bias are among the best for every sample, whatever the tables say about them.
TEST_F(ActiveSetTest, CommonRowsAreRankedForEverySample) {
  make(SamplingMode::kLsh);
  experiment_.sampling.common = 64;  // 32 a modelet
  experiment_.sampling.query_every = 1000;
  Modelet modelet(modelets_[0]->spec(), modelet_options(experiment_, true));
  modelet.initialise(0);
  for (const uint32_t row : {7u, 300u, 499u}) modelet.parameters().bias(row) = 100 + static_cast<float>(row);
  modelet.choose_common();
  ASSERT_EQ(modelet.retrieval()->common.size(), 32u);
  EXPECT_THAT(std::span(modelet.retrieval()->common).first(3), ::testing::ElementsAre(499, 300, 7));
  ActiveSetSampler sampler(modelet, output_options(experiment_, kManyLabels));
  std::vector<uint32_t> best;
  const QueryTurn nobody = {.every = 1000, .first = 999};
  queries_.take(*modelet.retrieval(), hidden(64), pool_, nobody);
  sampler.retrieve(modelet, hidden(64), queries_, 2, pool_, best, nobody);
  for (size_t s = 0; s < 64; ++s) {
    EXPECT_EQ(best[2 * s], 499u);
    EXPECT_EQ(best[2 * s + 1], 300u);
  }
  // A neuron that is active as a label does not take the place of a common neuron.
  const uint32_t label = spread_.label(static_cast<uint32_t>(modelet.spec().begin) + 499);
  const ActiveSet& set = select_with(sampler, modelet, batch_of({{label}}), hidden(1), 1, pool_);
  EXPECT_EQ(set.rows[0], 499u);
  EXPECT_THAT(std::vector(set.rows.begin() + 1, set.rows.begin() + 3), ::testing::ElementsAre(300, 7));
}

// With as many directions as dimensions, and nearly as many runs as rows, nothing is lost. Only rounding can
// make a difference from brute force.
TEST_F(ActiveSetTest, ProjectionsFindTheBestByBruteForce) {
  make_with_projections();
  const size_t samples = 64;
  std::vector<uint32_t> best;
  queries_.take(*modelets_[0]->retrieval(), hidden(samples), pool_);
  samplers_[0].retrieve(*modelets_[0], hidden(samples), queries_, 1, pool_, best);
  for (size_t s = 0; s < samples; ++s) {
    ASSERT_NE(best[s], ActiveSetSampler::kNone);
    const Parameters& p = modelets_[0]->parameters();
    float largest = p.logit(0, hidden(samples).row(s));
    for (uint32_t row = 1; row < 500; ++row)
      largest = std::max(largest, p.logit(row, hidden(samples).row(s)));
    EXPECT_NEAR(p.logit(best[s], hidden(samples).row(s)), largest, 1e-2);
  }
}

TEST_F(ActiveSetTest, RetrievedByProjectionsBesideLabelsOnWhateverThreads) {
  make_with_projections();
  const Batch batch = batch_of(std::vector<std::vector<uint32_t>>(64, {1, 2}));
  const ActiveSet two = select(0, batch, 3);
  EXPECT_EQ(std::set<uint32_t>(two.rows.begin(), two.rows.end()).size(), two.rows.size()) << "each once";
  const size_t labels = two.targets.size() / 64;
  EXPECT_GT(two.rows.size() - two.drawn, labels + 10) << "nothing was retrieved";
  ThreadPool one(1);
  EXPECT_EQ(select_with(samplers_[0], *modelets_[0], batch, hidden(64), 3, one).rows, two.rows);
}

TEST_F(ActiveSetTest, NothingIsFoundBeforeThereAreProjections) {
  make(SamplingMode::kLsh, 0, RetrievalKind::kLowRank);
  const ActiveSet& set = select(0, batch_of({{1}, {2}}), 0);
  EXPECT_LE(set.rows.size() - set.drawn, 2u) << "labels only";
}

class TurnTest : public ActiveSetTest, public testing::WithParamInterface<RetrievalKind> {};

TEST_P(TurnTest, EachSampleAsksInItsTurn) {
  if (GetParam() == RetrievalKind::kLowRank) {
    make_with_projections();
  } else {
    make(SamplingMode::kLsh);
  }
  const std::vector<uint32_t> all = [&] {
    std::vector<uint32_t> best;
    queries_.take(*modelets_[0]->retrieval(), hidden(64), pool_);
    samplers_[0].retrieve(*modelets_[0], hidden(64), queries_, 3, pool_, best);
    return best;
  }();
  for (size_t first = 0; first < 4; ++first) {
    const QueryTurn turn = {.every = 4, .first = first};
    std::vector<uint32_t> best;
    queries_.take(*modelets_[0]->retrieval(), hidden(64), pool_, turn);
    samplers_[0].retrieve(*modelets_[0], hidden(64), queries_, 3, pool_, best, turn);
    for (size_t s = 0; s < 64; ++s)
      for (size_t i = 0; i < 3; ++i)
        EXPECT_EQ(best[3 * s + i], turn.of(s) ? all[3 * s + i] : ActiveSetSampler::kNone) << "sample " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Retrieval, TurnTest,
                         ::testing::Values(RetrievalKind::kLowRank, RetrievalKind::kTables));

TEST_F(ActiveSetTest, SparsityIsTheShareOfActiveNeurons) {
  for (const SamplingMode mode : {SamplingMode::kUniform, SamplingMode::kLsh}) {
    modelets_.clear();
    samplers_.clear();
    make(mode);
    experiment_.sampling.sparsity = 0.2f;
    ActiveSetSampler sampler(*modelets_[0], output_options(experiment_, kManyLabels));
    if (mode == SamplingMode::kLsh) queries_.take(*modelets_[0]->retrieval(), hidden(64), pool_);
    const Batch batch = batch_of(std::vector<std::vector<uint32_t>>(64, {1, 2, 3, 4}));
    const ActiveSet& set = select_with(sampler, *modelets_[0], batch, hidden(64), 0, pool_);
    EXPECT_EQ(set.rows.size(), 100u);
    if (mode == SamplingMode::kLsh) {
      EXPECT_NEAR(static_cast<double>(set.drawn), 50, 3) << "at most half is retrieved";
    }
  }
}

TEST_F(ActiveSetTest, ThreadsDoNotChangeTheSet) {
  make(SamplingMode::kLsh);
  const Batch batch = batch_of(std::vector<std::vector<uint32_t>>(64, {1, 2}));
  const std::vector<uint32_t> two = select(0, batch, 3).rows;
  ThreadPool one(1);
  EXPECT_EQ(select_with(samplers_[0], *modelets_[0], batch, hidden(64), 3, one).rows, two);
}

}  // namespace
}  // namespace modelet::shard
