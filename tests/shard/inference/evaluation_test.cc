#include "shard/inference/evaluation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/array/padding.h"
#include "base/experiment/partition.h"
#include "shard/kernels/elementwise.h"

namespace modelet::shard {
namespace {

TEST(TopKTest, KeepsTheBestWhateverTheOrder) {
  std::vector<std::pair<float, uint32_t>> entries;
  Rng rng(1);
  for (uint32_t label = 0; label < 200; ++label)
    entries.emplace_back(std::floor(rng.uniform() * 20), label);  // many ties
  std::vector<std::pair<float, uint32_t>> expected = entries;
  std::sort(expected.begin(), expected.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  for (int round = 0; round < 20; ++round) {
    for (size_t i = entries.size(); i > 1; --i)
      std::swap(entries[i - 1], entries[rng.below(static_cast<uint32_t>(i))]);
    TopK all, left, right;
    for (TopK* t : {&all, &left, &right}) t->reset(1, 7);
    for (size_t i = 0; i < entries.size(); ++i) {
      all.insert(0, entries[i].first, entries[i].second);
      (i % 2 == 0 ? left : right).insert(0, entries[i].first, entries[i].second);
    }
    left.merge(right);
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(all.labels(0)[i], expected[i].second);
      EXPECT_EQ(all.scores(0)[i], expected[i].first);
      EXPECT_EQ(left.labels(0)[i], expected[i].second);
    }
  }
}

TEST(TopKTest, UnfilledPlacesAreMarked) {
  TopK best;
  best.reset(2, 3);
  best.insert(1, 5, 42);
  EXPECT_EQ(best.labels(0)[0], TopK::kNoLabel);
  EXPECT_EQ(best.labels(1)[0], 42u);
  EXPECT_EQ(best.labels(1)[1], TopK::kNoLabel);
}

// Kernels look at whole vectors of samples, of which the last has room for more samples than there are.
TEST(TopKTest, TakesInfinityAndLeavesOutWhatIsNoNumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  TopK best;
  best.reset(3, 2);
  const size_t columns = padded(3);
  const AlignedVector<float> row(columns, kInfinity), nothing(columns, std::nanf(""));
  std::vector<uint32_t> positions(columns);
  EXPECT_EQ(kernels::positions_above(row.data(), best.thresholds(), columns, positions.data()), 3u);
  for (size_t s = 0; s < columns; ++s) {
    best.insert(s, std::nanf(""), 1);
    best.insert(s, kInfinity, 2);
    best.insert(s, -kInfinity, 3);
    best.insert(s, kInfinity, 1);
  }
  EXPECT_EQ(kernels::positions_above(row.data(), best.thresholds(), columns, positions.data()), 3u);
  EXPECT_EQ(kernels::positions_above(nothing.data(), best.thresholds(), columns, positions.data()), 0u);
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_EQ(best.labels(s)[0], 1u);
    EXPECT_EQ(best.labels(s)[1], 2u);
  }
}

class RankerTest : public ::testing::Test {
 protected:
  static constexpr size_t kLabels = 700, kWidth = 32, kSamples = 21;

  RankerTest() {
    experiment_.model.hidden = {kWidth};
    experiment_.modelets.output_modelets = 3;
    for (const ModeletSpec& spec : partition_model(experiment_, {.features = 5, .labels = kLabels})) {
      if (spec.kind != LayerKind::kOutput) continue;
      modelets_.push_back(std::make_unique<Modelet>(spec, modelet_options(experiment_, false)));
      modelets_.back()->initialise(0);
      Parameters& p = modelets_.back()->parameters();
      for (size_t r = 0; r < p.rows(); ++r) p.bias(r) = 0.1f * rng_.normal();
      pointers_.push_back(modelets_.back().get());
    }
    hidden_.resize(kSamples * kWidth);
    for (float& h : hidden_) h = rng_.normal();
    const size_t columns = kernels_padded(kSamples);
    transposed_.assign(kWidth * columns, 0);
    for (size_t s = 0; s < kSamples; ++s)
      for (size_t c = 0; c < kWidth; ++c) transposed_[c * columns + s] = hidden_[s * kWidth + c];
  }
  static size_t kernels_padded(size_t n) { return (n + 15) / 16 * 16; }

  // The best labels, found by scoring all labels in double precision.
  std::vector<uint32_t> brute_force(size_t sample, size_t k) const {
    std::vector<std::pair<double, uint32_t>> all;
    for (const Modelet* m : pointers_)
      for (uint32_t row = 0; row < m->spec().neurons(); ++row) {
        double z = m->parameters().bias(row);
        for (size_t c = 0; c < kWidth; ++c)
          z += double{hidden_[sample * kWidth + c]} * m->parameters().floats().row(row)[c];
        all.emplace_back(-z, spread_.label(static_cast<uint32_t>(m->spec().begin) + row));
      }
    std::sort(all.begin(), all.end());
    std::vector<uint32_t> labels;
    for (size_t i = 0; i < k; ++i) labels.push_back(all[i].second);
    return labels;
  }

  Experiment experiment_;
  Rng rng_{9};
  ThreadPool pool_{2};
  LabelSpread spread_{kLabels, 2};
  std::vector<std::unique_ptr<Modelet>> modelets_;
  std::vector<Modelet*> pointers_;
  AlignedVector<float> hidden_, transposed_;
};

TEST_F(RankerTest, DenseRankingEqualsBruteForce) {
  const Scoring scoring(pointers_, spread_, scoring_settings(experiment_));
  LabelRanker ranker(scoring, pool_);
  TopK best;
  ranker.rank_dense({transposed_.data(), kWidth, kernels_padded(kSamples), kernels_padded(kSamples)},
                    kSamples, 5, best);
  for (size_t s = 0; s < kSamples; ++s)
    EXPECT_EQ(std::vector<uint32_t>(best.labels(s).begin(), best.labels(s).end()), brute_force(s, 5));
}

TEST_F(RankerTest, AllScoresAreThoseOfTheRanking) {
  const Scoring scoring(pointers_, spread_, scoring_settings(experiment_));
  LabelRanker ranker(scoring, pool_);
  const ConstMatrix hidden{transposed_.data(), kWidth, kernels_padded(kSamples), kernels_padded(kSamples)};
  std::vector<float> scores(kSamples * kLabels);
  ranker.score_dense(hidden, kSamples, scores.data());
  TopK best;
  ranker.rank_dense(hidden, kSamples, kLabels, best);
  for (size_t s = 0; s < kSamples; ++s)
    for (size_t i = 0; i < kLabels; ++i)
      EXPECT_EQ(scores[s * kLabels + best.labels(s)[i]], best.scores(s)[i]) << s << " " << i;
}

}  // namespace
}  // namespace modelet::shard
