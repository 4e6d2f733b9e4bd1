// Which features have rows, compared with a set.
#include "shard/data/store/feature_rows.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/rng.h"
#include "shard/data/store/csr.h"

namespace modelet::shard::testing {
namespace {

// Samples without labels, a feature each.
class OneEach {
 public:
  OneEach(uint64_t features, const std::vector<uint32_t>& ids)
      : features_(features), ids_(ids), values_(ids.size(), 1.0f), label_offsets_(ids.size() + 1, 0) {
    for (size_t row = 0; row <= ids.size(); ++row) offsets_.push_back(row);
  }
  FeatureRows rows(const FeatureRows* earlier = nullptr) const {
    return FeatureRows::of(
        Dataset::of({features_, 1, offsets_, ids_, values_, label_offsets_, {}}, Normalize::kNone), earlier);
  }

 private:
  uint64_t features_;
  std::vector<uint32_t> ids_;
  std::vector<float> values_;
  std::vector<uint64_t> offsets_, label_offsets_;
};

void expect_rows(const FeatureRows& rows, const std::set<uint32_t>& occurring, uint64_t features) {
  ASSERT_EQ(rows.count(), occurring.size());
  uint32_t row = 0;
  for (const uint32_t feature : occurring) {
    EXPECT_EQ(rows.row(feature), row);
    EXPECT_EQ(rows.feature(row++), feature);
  }
  for (uint32_t feature = 0; feature < features; feature += feature < 5000 ? 1 : 997)
    EXPECT_EQ(rows.row(feature) == FeatureRows::kNone, !occurring.contains(feature)) << feature;
}

TEST(FeatureRows, AreThoseThatOccurInTheirOrder) {
  constexpr uint32_t kFeatures = 100'003;
  for (const uint32_t count : {1u, 2u, 40u, 3000u}) {
    std::vector<uint32_t> ids = {kFeatures - 1};
    for (Rng rng(3, {count}); ids.size() < count;) ids.push_back(rng.below(kFeatures));
    expect_rows(OneEach(kFeatures, ids).rows(), {ids.begin(), ids.end()}, kFeatures);
  }
}

TEST(FeatureRows, AllHaveTheRowOfTheirNumber) {
  const FeatureRows rows = OneEach(3, {2, 0, 1, 1}).rows();
  EXPECT_TRUE(rows.all());
  EXPECT_TRUE(rows.ids().empty());
  EXPECT_EQ(rows.count(), 3);
  EXPECT_EQ(rows.row(2), 2);
  EXPECT_EQ(rows.feature(1), 1);
}

TEST(FeatureRows, AddsThoseOfEarlierSamples) {
  const FeatureRows earlier = OneEach(2000, {7, 1500}).rows();
  expect_rows(OneEach(2000, {3, 7, 900}).rows(&earlier), {3, 7, 900, 1500}, 2000);
  const FeatureRows all(2000);
  EXPECT_TRUE(OneEach(2000, {3}).rows(&all).all());
}

TEST(FeatureRows, OfSamplesWithoutFeaturesIsOne) {
  const uint64_t offsets[] = {0, 0};
  const FeatureRows rows =
      FeatureRows::of(Dataset::of({10, 1, offsets, {}, {}, offsets, {}}, Normalize::kNone));
  EXPECT_EQ(rows.count(), 1);
}

TEST(FeatureRows, TakeMemoryForThoseThatOccur) {
  constexpr uint64_t kMost = (uint64_t{1} << 31) - 1;
  const FeatureRows rows = OneEach(kMost, {5, 1 << 30, (1u << 31) - 2}).rows();
  EXPECT_EQ(rows.row(1 << 30), 1);
  EXPECT_LE(rows.memory_bytes(), kMost / 128 + 3 * 4096);
}

}  // namespace
}  // namespace modelet::shard::testing
