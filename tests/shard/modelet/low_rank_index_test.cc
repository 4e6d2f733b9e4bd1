// Low-rank projections compared with all logits, computed one by one.
#include "shard/modelet/low_rank_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace modelet::shard {
namespace {

constexpr size_t kRows = 500, kDim = 64, kSamples = 100, kRank = 16, kSpace = 12;

class LowRankIndexTest : public ::testing::TestWithParam<Precision> {
 protected:
  LowRankIndexTest()
      : parameters_({.rows = kRows, .cols = kDim, .with_bias = true}, GetParam(), std::nullopt, 1) {
    std::vector<float> row(kDim);
    for (size_t r = 0; r < kRows; ++r) {
      for (float& w : row) w = 0.3f * rng_.normal();
      parameters_.set_row(r, row.data());
      parameters_.bias(r) = rng_.normal();
    }
    hidden_ = activations(1);
  }

  // Samples near a mean that is larger than the differences between them. The differences have kSpace
  // dimensions.
  AlignedVector<float> activations(uint64_t seed) {
    Rng rng(seed, {});
    std::vector<float> space(kSpace * kDim), mean(kDim);
    for (float& v : space) v = rng.normal() / std::sqrt(static_cast<float>(kSpace));
    for (float& v : mean) v = 2 * rng.normal();
    AlignedVector<float> hidden(kSamples * kDim);
    for (size_t s = 0; s < kSamples; ++s) {
      std::copy(mean.begin(), mean.end(), &hidden[s * kDim]);
      for (size_t j = 0; j < kSpace; ++j) {
        const float factor = rng.normal();
        for (size_t c = 0; c < kDim; ++c) hidden[s * kDim + c] += factor * space[j * kDim + c];
      }
    }
    return hidden;
  }
  ConstMatrix hidden() const { return {hidden_.data(), kSamples, kDim, kDim}; }

  LowRankIndex built() {
    LowRankIndex index(kRows, kDim, kRank);
    index.build(parameters_, main_directions(hidden(), kRank), hidden(), pool_);
    return index;
  }
  LowRankSearch search(const LowRankIndex& index, std::span<const uint32_t> without, size_t runs,
                       ThreadPool& pool) const {
    const size_t columns = (kSamples + 15) / 16 * 16;
    AlignedVector<float> queries(kDim * columns);
    for (size_t s = 0; s < kSamples; ++s)
      for (size_t c = 0; c < kDim; ++c) queries[c * columns + s] = hidden_[s * kDim + c];
    LowRankSearch found;
    index.search({queries.data(), kDim, columns, columns}, without, runs, pool, found);
    return found;
  }

  Rng rng_{3, {}};
  ThreadPool pool_{2};
  Parameters parameters_;
  AlignedVector<float> hidden_;
};

TEST_P(LowRankIndexTest, DirectionsAreOrthonormalAndHoldTheActivations) {
  const LowRankBasis basis = main_directions(hidden(), kRank);
  const auto direction = [&](size_t j) { return &basis.directions[j * kDim]; };
  const auto dot = [](const float* a, const float* b) {
    double sum = 0;
    for (size_t c = 0; c < kDim; ++c) sum += double{a[c]} * b[c];
    return sum;
  };
  for (size_t i = 0; i < kRank; ++i)
    for (size_t j = 0; j < kRank; ++j) {
      if (i >= kSpace || j >= kSpace) continue;  // directions that only rounding errors produced
      EXPECT_NEAR(dot(direction(i), direction(j)), i == j ? 1 : 0, 1e-4);
    }
  double left = 0, all = 0;
  for (size_t s = 0; s < kSamples; ++s) {
    std::vector<float> centred(kDim);
    for (size_t c = 0; c < kDim; ++c) centred[c] = hidden_[s * kDim + c] - basis.mean[c];
    all += dot(centred.data(), centred.data());
    left += dot(centred.data(), centred.data());
    for (size_t j = 0; j < kSpace; ++j) left -= std::pow(dot(direction(j), centred.data()), 2);
  }
  EXPECT_LT(left, 1e-3 * all);
  EXPECT_EQ(main_directions(hidden(), kRank), basis);
  EXPECT_EQ(main_directions(hidden().row_range(0, 1), kRank).directions,
            std::vector<float>(kRank * kDim, 0.0f))
      << "one sample differs from nothing";
}

TEST_P(LowRankIndexTest, FindsTheLargestLogitOfEachRun) {
  const LowRankIndex index = built();
  const std::vector<uint32_t> without = {3, 77, 78, 499};
  for (const size_t runs : {1, 7}) {
    const LowRankSearch found = search(index, without, runs, pool_);
    double lost = 0, spread = 0;
    for (size_t run = 0; run < runs; ++run)
      for (size_t s = 0; s < kSamples; ++s) {
        const size_t begin = kRows * run / runs, end = kRows * (run + 1) / runs;
        float best = -std::numeric_limits<float>::infinity(), sum = 0;
        for (size_t row = begin; row < end; ++row) {
          const float logit = parameters_.logit(row, hidden().row(s));
          sum += logit;
          if (std::ranges::count(without, row) == 0) best = std::max(best, logit);
        }
        const uint32_t row = found.rows[run * found.columns + s];
        ASSERT_GE(row, begin);
        ASSERT_LT(row, end);
        EXPECT_EQ(std::ranges::count(without, row), 0);
        lost += best - parameters_.logit(row, hidden().row(s));
        spread += best - sum / static_cast<float>(end - begin);
      }
    EXPECT_LT(lost, 0.01 * spread) << runs << " runs: bf16 may take one of two nearly equal rows";
    ThreadPool one(1);
    EXPECT_EQ(search(index, without, runs, one).rows, found.rows);
  }
}

TEST_P(LowRankIndexTest, ARunWithoutRowsFindsNone) {
  std::vector<uint32_t> all(kRows / 2);
  for (uint32_t r = 0; r < all.size(); ++r) all[r] = r;
  const LowRankSearch found = search(built(), all, 2, pool_);
  for (size_t s = 0; s < kSamples; ++s) {
    EXPECT_EQ(found.rows[s], LowRankSearch::kNone);
    EXPECT_NE(found.rows[found.columns + s], LowRankSearch::kNone);
  }
}

TEST_P(LowRankIndexTest, DriftIsOfWeightsAndOfActivations) {
  const LowRankIndex index = built();
  EXPECT_NEAR(index.drift(parameters_, hidden()), 0, 1e-6);
  const AlignedVector<float> elsewhere = activations(9);
  EXPECT_GT(index.drift(parameters_, {elsewhere.data(), kSamples, kDim, kDim}), 0.3f);
  std::vector<float> row(kDim);
  for (size_t r = 0; r < kRows; ++r) {
    for (float& w : row) w = 0.3f * rng_.normal();
    parameters_.set_row(r, row.data());
  }
  EXPECT_GT(index.drift(parameters_, hidden()), 0.3f);
}

TEST_P(LowRankIndexTest, IsRestored) {
  const LowRankIndex index = built();
  LowRankIndex other(kRows, kDim, kRank);
  EXPECT_FALSE(other.ready());
  other.restore(index.basis(), index.projections(), index.centres(), index.missed_when_built());
  EXPECT_TRUE(other.ready());
  EXPECT_EQ(search(other, {}, 5, pool_).rows, search(index, {}, 5, pool_).rows);
  EXPECT_EQ(other.drift(parameters_, hidden()), index.drift(parameters_, hidden()));
  EXPECT_THROW(other.restore(index.basis(), index.projections().subspan(1), index.centres(), 0), FormatError);
  EXPECT_THROW(other.restore({}, index.projections(), index.centres(), 0), FormatError);
}

INSTANTIATE_TEST_SUITE_P(Precisions, LowRankIndexTest, ::testing::Values(Precision::kFp32, Precision::kBf16));

}  // namespace
}  // namespace modelet::shard
