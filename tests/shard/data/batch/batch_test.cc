#include "shard/data/batch/batch.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/rng.h"
#include "shard/data/batch/split.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

std::vector<uint32_t> epoch_of(BatchOrder& order, uint64_t epoch) {
  std::vector<uint32_t> rows;
  for (uint64_t step = 0; step < order.steps_per_epoch(); ++step) {
    const auto batch = order.rows(epoch * order.steps_per_epoch() + step);
    rows.insert(rows.end(), batch.begin(), batch.end());
  }
  return rows;
}

TEST(BatchOrder, EachEpochIsAPermutation) {
  for (const auto& [rows, batch] :
       {std::pair<size_t, size_t>{1, 1}, {1, 8}, {8, 8}, {1000, 7}, {1000, 1000}, {1001, 250}}) {
    BatchOrder order(all_rows(rows), batch, 3);
    EXPECT_EQ(order.steps_per_epoch(), (rows + batch - 1) / batch);
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      auto seen = epoch_of(order, epoch);
      std::sort(seen.begin(), seen.end());
      std::vector<uint32_t> all(rows);
      std::iota(all.begin(), all.end(), 0u);
      EXPECT_EQ(seen, all);
    }
  }
}

TEST(BatchOrder, OnlyTheLastBatchIsShort) {
  BatchOrder order(all_rows(1001), 250, 3);
  for (uint64_t step = 0; step < 10; ++step) EXPECT_EQ(order.rows(step).size(), step % 5 == 4 ? 1u : 250u);
}

TEST(BatchShare, SharesMakeUpTheBatch) {
  const std::vector<uint32_t> rows = all_rows(23);
  for (const uint32_t count : {1u, 2u, 5u, 23u}) {
    std::vector<uint32_t> all;
    for (uint32_t i = 0; i < count; ++i) {
      const auto share = share_of(rows, {i, count});
      EXPECT_GE(share.size(), 23 / count);
      EXPECT_LE(share.size(), 23 / count + 1);
      all.insert(all.end(), share.begin(), share.end());
    }
    EXPECT_EQ(all, rows);
  }
  // With more shares than rows, each share has one row, and every row is in some share.
  std::vector<uint32_t> count(3, 0);
  for (uint32_t i = 0; i < 8; ++i) {
    const auto share = share_of(std::span(rows).first(3), {i, 8});
    ASSERT_EQ(share.size(), 1u);
    ++count[share[0]];
  }
  EXPECT_THAT(count, ::testing::Each(::testing::Ge(2u)));
}

TEST(BatchOrder, KnowsTheSizeOfAStep) {
  BatchOrder order(all_rows(1001), 250, 3);
  for (uint64_t step = 0; step < 10; ++step) EXPECT_EQ(order.size(step), order.rows(step).size());
}

TEST(BatchOrder, DependsOnSeedAndStepAlone) {
  BatchOrder forwards(all_rows(1000), 30, 5), backwards(all_rows(1000), 30, 5),
      other_seed(all_rows(1000), 30, 6);
  std::vector<std::vector<uint32_t>> batches;
  for (uint64_t step = 0; step < 100; ++step) {
    const auto rows = forwards.rows(step);
    batches.emplace_back(rows.begin(), rows.end());
  }
  for (uint64_t step = 100; step-- > 0;)
    EXPECT_TRUE(std::ranges::equal(backwards.rows(step), batches[step])) << step;
  EXPECT_NE(epoch_of(forwards, 0), epoch_of(other_seed, 0));
  EXPECT_NE(epoch_of(forwards, 0), epoch_of(forwards, 1));
}

TEST(BatchOrder, PlacesAreUniform) {
  // Row 0 comes first in a tenth of 1000 epochs, within five standard deviations.
  BatchOrder order(all_rows(10), 1, 9);
  int first = 0;
  for (uint64_t epoch = 0; epoch < 1000; ++epoch) first += order.rows(epoch * 10)[0] == 0;
  EXPECT_NEAR(first, 100, 48);
}

class BatchTest : public ::testing::Test {
 protected:
  Dataset random_dataset(size_t rows, uint32_t features, uint32_t gap) {
    PreparedWriter writer(folder_ / "data.mlt", features, 40, Normalize::kNone);
    for (size_t row = 0; row < rows; ++row) {
      Rng rng(11, {row});
      testing::OwnedSample sample;
      if (row % 9 != 4) {  // some rows stay empty
        for (uint64_t f = rng.below(gap); f < features; f += 1 + rng.below(gap)) {
          sample.features.push_back(static_cast<uint32_t>(f));
          sample.values.push_back(rng.normal());
        }
      }
      for (uint32_t l = rng.below(30); l < 40; l += 1 + rng.below(30)) sample.labels.push_back(l);
      writer.add(sample.view());
    }
    writer.finish();
    return Dataset::open(folder_ / "data.mlt");
  }

  testing::TemporaryFolder folder_;
};

void expect_rows(const Batch& batch, const Dataset& data, std::span<const uint32_t> rows) {
  ASSERT_EQ(batch.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sample sample = data.sample(rows[i]);
    const size_t begin = batch.offsets[i], count = batch.offsets[i + 1] - begin;
    const size_t first = batch.label_offsets[i], labels = batch.label_offsets[i + 1] - first;
    EXPECT_TRUE(std::ranges::equal(std::span(batch.features).subspan(begin, count), sample.features));
    EXPECT_TRUE(std::ranges::equal(std::span(batch.values).subspan(begin, count), sample.values));
    EXPECT_TRUE(std::ranges::equal(std::span(batch.labels).subspan(first, labels), sample.labels));
    EXPECT_EQ(batch.label_counts[i], data.label_count(rows[i]));
  }
}

// Transposes in the obvious way: a map from feature to its (sample, value) pairs in the order of samples.
void expect_transposed(const BatchBlock& batch) {
  std::map<uint32_t, std::vector<std::pair<uint32_t, float>>> columns;
  for (uint32_t sample = 0; sample < batch.size(); ++sample)
    for (size_t i = batch.offsets[sample]; i < batch.offsets[sample + 1]; ++i)
      columns[batch.features[i]].emplace_back(sample, batch.values[i]);
  ASSERT_EQ(batch.unique_features.size(), columns.size());
  ASSERT_EQ(batch.feature_offsets.size(), columns.size() + 1);
  EXPECT_EQ(batch.feature_offsets.front(), 0u);
  EXPECT_EQ(batch.feature_offsets.back(), batch.features.size());
  size_t u = 0;
  for (const auto& [feature, entries] : columns) {
    EXPECT_EQ(batch.unique_features[u], feature);
    std::vector<std::pair<uint32_t, float>> found;
    for (size_t i = batch.feature_offsets[u]; i < batch.feature_offsets[u + 1]; ++i)
      found.emplace_back(batch.feature_samples[i], batch.feature_values[i]);
    EXPECT_EQ(found, entries);
    ++u;
  }
}

TEST_F(BatchTest, GathersAndTransposes) {
  // The radix sort needs one, two and three digits; the last shape reaches the highest ids.
  struct Shape {
    uint32_t features, gap;
  };
  for (const Shape& shape :
       {Shape{5, 3}, Shape{2048, 60}, Shape{3000, 60}, Shape{200000, 3000}, Shape{2147483647, 90000000}}) {
    const Dataset data = random_dataset(300, shape.features, shape.gap);
    BatchOrder order(all_rows(data.rows()), 64, 1);
    Batch batch;
    for (uint64_t step = 0; step < 2 * order.steps_per_epoch(); ++step) {
      const auto rows = order.rows(step);
      batch.assign(data, rows, true);
      expect_rows(batch, data, rows);
      expect_transposed(batch);
    }
  }
}

// A batch of data with other blocks has, in its first block, what it would have without them, and in each of
// the others what a batch has whose only block that is.
TEST(Batch, GathersEveryBlock) {
  const testing::TemporaryFolder folder;
  constexpr uint32_t kItems = 5000;
  PreparedWriter both(folder / "both", 100, 3, Normalize::kNone, Existing::kReplace, 0,
                      {{"history", kItems}});
  PreparedWriter first(folder / "first", 100, 3, Normalize::kNone);
  std::vector<testing::OwnedSample> histories;
  for (uint64_t row = 0; row < 70; ++row) {
    Rng rng(3, {row});
    testing::OwnedSample sample, history;
    for (uint32_t f = rng.below(9); f < 100; f += 1 + rng.below(30)) {
      sample.features.push_back(f);
      sample.values.push_back(rng.normal());
    }
    for (uint32_t left = rng.below(6); left > 0; --left) {
      history.features.push_back(rng.below(row % 2 == 0 ? 4 : kItems));
      history.values.push_back(rng.normal());
    }
    const BlockSample other{history.features, history.values};
    both.add(sample.view(), {&other, 1});
    first.add(sample.view());
    histories.push_back(history);
  }
  both.finish();
  first.finish();
  const Dataset with = Dataset::open(folder / "both"), without = Dataset::open(folder / "first");
  BatchOrder order(all_rows(with.rows()), 32, 1);
  Batch batch, alone;
  for (uint64_t step = 0; step < 2 * order.steps_per_epoch(); ++step) {
    const auto rows = order.rows(step);
    for (const FeatureDropout& dropout : {FeatureDropout{}, FeatureDropout{0.5f, 7, step}}) {
      batch.assign(with, rows, true, dropout);
      alone.assign(without, rows, true, dropout);
      EXPECT_EQ(batch.features, alone.features);
      EXPECT_EQ(batch.values, alone.values);
      EXPECT_EQ(batch.feature_samples, alone.feature_samples);
      ASSERT_EQ(batch.others.size(), 1u);
      const BatchBlock& history = batch.others.front();
      ASSERT_EQ(history.size(), rows.size());
      expect_transposed(history);
      if (dropout.rate > 0) continue;
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto begin = history.offsets[i], count = history.offsets[i + 1] - begin;
        EXPECT_TRUE(std::ranges::equal(std::span(history.features).subspan(begin, count),
                                       histories[rows[i]].features));
        EXPECT_TRUE(
            std::ranges::equal(std::span(history.values).subspan(begin, count), histories[rows[i]].values));
      }
    }
  }
  EXPECT_TRUE(alone.others.empty());
  batch.assign(with, order.rows(0), false);
  EXPECT_TRUE(batch.others.front().unique_features.empty());
}

TEST_F(BatchTest, EvaluationLeavesTheSecondHalfEmpty) {
  const Dataset data = random_dataset(50, 3000, 60);
  const std::vector<uint32_t> rows{3, 3, 49, 4};
  Batch batch;
  batch.assign(data, rows, true);
  batch.assign(data, rows, false);
  expect_rows(batch, data, rows);
  EXPECT_TRUE(batch.unique_features.empty());
  EXPECT_TRUE(batch.feature_samples.empty());
  batch.assign(data, {}, true);
  EXPECT_EQ(batch.size(), 0u);
  EXPECT_THAT(batch.feature_offsets, ::testing::ElementsAre(0));
}

// Masks depend on the place of a sample in the whole batch, whichever replica trains on it.
TEST(BatchShare, ReplicasDropTogetherWhatOneModelDrops) {
  testing::TemporaryFolder folder;
  PreparedWriter writer(folder / "data", 100, 3, Normalize::kNone);
  std::vector<uint32_t> ids(100);
  std::iota(ids.begin(), ids.end(), 0u);
  const std::vector<float> values(100, 1.0f);
  for (uint32_t s = 0; s < 7; ++s) writer.add({ids, values, std::span(ids).first(1)});
  writer.finish();
  const Dataset data = Dataset::open(folder / "data");
  const std::vector<uint32_t> rows = all_rows(7);
  const FeatureDropout dropout{0.5f, 7, 3};
  Batch whole, share;
  whole.assign(data, rows, true, dropout);
  std::vector<uint32_t> together;
  for (uint32_t i = 0; i < 3; ++i) {
    share.assign(data, share_of(rows, {i, 3}), true, dropout, first_place(rows.size(), {i, 3}));
    together.insert(together.end(), share.features.begin(), share.features.end());
  }
  EXPECT_EQ(together, whole.features);
  // With fewer samples than replicas some samples are in several replicas, but not with the same mask.
  Batch other;
  const auto one = std::span(rows).first(1);
  share.assign(data, share_of(one, {0, 2}), true, dropout, first_place(1, {0, 2}));
  other.assign(data, share_of(one, {1, 2}), true, dropout, first_place(1, {1, 2}));
  EXPECT_NE(share.features, other.features);
}

TEST(Batch, DropoutLeavesOutAShareOfTheFeatures) {
  testing::TemporaryFolder folder;
  PreparedWriter writer(folder / "data", 1000, 3, Normalize::kNone);
  std::vector<uint32_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 0u);
  const std::vector<float> values(1000, 2.0f);
  for (uint32_t s = 0; s < 20; ++s) writer.add({ids, values, std::span(ids).subspan(s % 3, 1)});
  writer.finish();
  const Dataset data = Dataset::open(folder / "data");
  const std::vector<uint32_t> rows = all_rows(20);
  Batch whole, batch, again, other;
  whole.assign(data, rows, true);
  batch.assign(data, rows, true, {0.25f, 7, 3});
  again.assign(data, rows, true, {0.25f, 7, 3});
  other.assign(data, rows, true, {0.25f, 7, 4});
  EXPECT_EQ(batch.features, again.features);
  EXPECT_NE(batch.features, other.features);
  EXPECT_EQ(batch.labels, whole.labels);
  // 20,000 draws: five standard deviations are 306.
  EXPECT_NEAR(static_cast<double>(batch.features.size()), 15000, 306);
  EXPECT_THAT(batch.values, ::testing::Each(2.0f / 0.75f));
  for (size_t s = 0; s < 20; ++s) {
    const std::span<const uint32_t> sample(batch.features.data() + batch.offsets[s],
                                           batch.offsets[s + 1] - batch.offsets[s]);
    EXPECT_NEAR(static_cast<double>(sample.size()), 750, 69);
    EXPECT_TRUE(std::ranges::is_sorted(sample));
    for (const uint32_t feature : sample) {
      const auto found = std::ranges::lower_bound(batch.unique_features, feature);
      ASSERT_TRUE(found != batch.unique_features.end() && *found == feature);
    }
  }
  EXPECT_EQ(batch.feature_samples.size(), batch.features.size());
  EXPECT_NE(std::vector(batch.features.begin(), batch.features.begin() + 500),
            std::vector(batch.features.begin() + static_cast<ptrdiff_t>(batch.offsets[1]),
                        batch.features.begin() + static_cast<ptrdiff_t>(batch.offsets[1]) + 500))
      << "every sample has draws of its own";
}

}  // namespace
}  // namespace modelet::shard
