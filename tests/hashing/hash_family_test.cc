#include "hashing/hash_family.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "tests/hashing/random_data.h"

namespace modelet::hashing {
namespace {

using testing::Each;
using testing::Lt;

std::vector<uint32_t> codes_of(const HashFamily& family, std::span<const float> x) {
  std::vector<uint32_t> codes(family.options().tables, 0xffffffff);
  HashMemory scratch;
  family.hash(x, codes, scratch);
  return codes;
}

// The fraction of tables in which two vectors collide.
double collisions(const HashFamily& family, std::span<const float> x, std::span<const float> y) {
  const std::vector<uint32_t> a = codes_of(family, x), b = codes_of(family, y);
  size_t equal = 0;
  for (size_t t = 0; t < a.size(); ++t) equal += a[t] == b[t];
  return static_cast<double>(equal) / static_cast<double>(a.size());
}

// A vector whose expected cosine with x is `cosine`.
std::vector<float> neighbour(std::span<const float> x, double cosine, Rng& rng) {
  std::vector<float> y(x.begin(), x.end());
  for (float& value : y) {
    value = static_cast<float>(cosine) * value +
            static_cast<float>(std::sqrt(1 - cosine * cosine)) * rng.normal();
  }
  return y;
}

// The mean collision rate of 200 random pairs with this cosine.
double collision_rate(const HashFamily& family, double cosine) {
  constexpr int kPairs = 200;
  Rng rng(11);
  double sum = 0;
  for (int i = 0; i < kPairs; ++i) {
    const std::vector<float> x = normal_vector(family.options().dim, rng);
    sum += collisions(family, x, neighbour(x, cosine, rng));
  }
  return sum / kPairs;
}

class EachFamily : public testing::TestWithParam<HashFamilyKind> {
 protected:
  std::unique_ptr<HashFamily> make(size_t dim, uint32_t tables, uint32_t bits, uint64_t seed = 5) const {
    return make_hash_family({GetParam(), dim, tables, bits, seed});
  }
};

TEST_P(EachFamily, CodesFitTheTableForAllShapes) {
  Rng rng(1);
  for (size_t dim : {1, 2, 3, 7, 8, 9, 64, 100, 128, 257}) {
    for (uint32_t bits : {1, 2, 3, 4, 8, 9, 24}) {
      const auto family = make(dim, 5, bits);
      EXPECT_THAT(codes_of(*family, normal_vector(dim, rng)), Each(Lt(1u << bits))) << dim << " " << bits;
    }
  }
}

TEST_P(EachFamily, EqualVectorsCollideInEveryTable) {
  Rng rng(2);
  for (size_t dim : {1, 5, 128}) {
    const auto family = make(dim, 16, 9), same = make(dim, 16, 9);
    for (int i = 0; i < 50; ++i) {
      const std::vector<float> x = normal_vector(dim, rng);
      EXPECT_EQ(codes_of(*family, x), codes_of(*same, x));
    }
  }
}

TEST_P(EachFamily, ScratchCarriesNothingOver) {
  Rng rng(3);
  const auto wide = make(100, 16, 9), narrow = make(10, 4, 5);
  const std::vector<float> x = normal_vector(100, rng), y = normal_vector(10, rng);
  HashMemory scratch;
  std::vector<uint32_t> wide_codes(16), narrow_codes(4);
  for (int i = 0; i < 2; ++i) {
    wide->hash(x, wide_codes, scratch);
    narrow->hash(y, narrow_codes, scratch);
    EXPECT_EQ(wide_codes, codes_of(*wide, x));
    EXPECT_EQ(narrow_codes, codes_of(*narrow, y));
  }
}

TEST_P(EachFamily, ScaleDoesNotMatter) {
  Rng rng(4);
  const auto family = make(128, 32, 9);
  const std::vector<float> x = normal_vector(128, rng);
  std::vector<float> scaled = x;
  for (float& value : scaled) value *= 0.25f;
  EXPECT_EQ(codes_of(*family, x), codes_of(*family, scaled));
}

TEST_P(EachFamily, SeedsGiveDifferentFunctions) {
  Rng rng(5);
  const std::vector<float> x = normal_vector(128, rng);
  const auto one = make(128, 16, 9, 1), two = make(128, 16, 9, 2);
  EXPECT_NE(codes_of(*one, x), codes_of(*two, x));
}

TEST_P(EachFamily, TablesAreDifferentFunctions) {
  constexpr uint32_t kTables = 64;
  const auto family = make(64, kTables, 8);
  std::vector<std::vector<uint32_t>> codes_by_table(kTables);
  Rng rng(12);
  for (int i = 0; i < 50; ++i) {
    const std::vector<uint32_t> codes = codes_of(*family, normal_vector(64, rng));
    for (uint32_t t = 0; t < kTables; ++t) codes_by_table[t].push_back(codes[t]);
  }
  std::sort(codes_by_table.begin(), codes_by_table.end());
  EXPECT_EQ(std::adjacent_find(codes_by_table.begin(), codes_by_table.end()), codes_by_table.end());
}

TEST_P(EachFamily, CollisionRateGrowsWithCosine) {
  const auto family = make(128, 64, 6);
  double last = 0;
  for (double cosine : {0.0, 0.3, 0.6, 0.8, 0.9, 0.97}) {
    const double rate = collision_rate(*family, cosine);
    EXPECT_GT(rate, last) << "cosine " << cosine;
    last = rate;
  }
  EXPECT_GT(last, 0.3);
  // Unrelated vectors collide with probability 1/64, by the number of buckets. MinHash adds 1/31, the overlap
  // of unrelated sets.
  EXPECT_LT(collision_rate(*family, 0), 1.0 / 64 + 1.0 / 31);
}

TEST_P(EachFamily, SparseVectorsKeepTheirNeighbours) {
  Rng rng(7);
  const auto family = make(256, 64, 6);
  double related = 0, unrelated = 0;
  for (int i = 0; i < 100; ++i) {
    std::vector<float> x(256, 0.0f), z(256, 0.0f);
    for (int k = 0; k < 12; ++k) {
      x[rng.below(256)] = 1 + rng.uniform();
      z[rng.below(256)] = 1 + rng.uniform();
    }
    std::vector<float> y = x;
    for (float& value : y) value *= 1 + 0.1f * rng.uniform();
    related += collisions(*family, x, y) / 100;
    unrelated += collisions(*family, x, z) / 100;
  }
  EXPECT_GT(related, 0.4);
  EXPECT_LT(unrelated, 0.15);
}

TEST_P(EachFamily, HostileVectorsHaveValidCodes) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const float all_ones_nan = -std::nanf("0x3fffff");
  for (size_t dim : {1, 3, 128}) {
    const auto family = make(dim, 16, 9);
    for (float value : {0.0f, -0.0f, 1.0f, -1.0f, 1e-45f, 3e38f, infinity, -infinity, nan, all_ones_nan}) {
      const std::vector<float> same(dim, value);
      EXPECT_THAT(codes_of(*family, same), Each(Lt(1u << 9))) << dim << " x " << value;
      EXPECT_EQ(codes_of(*family, same), codes_of(*family, same));
      std::vector<float> one(dim, 0.5f);
      one[dim / 2] = value;
      EXPECT_THAT(codes_of(*family, one), Each(Lt(1u << 9))) << dim << " with " << value;
    }
    EXPECT_EQ(codes_of(*family, std::vector<float>(dim, 0.0f)),
              codes_of(*family, std::vector<float>(dim, -0.0f)));
  }
}

TEST_P(EachFamily, RefusesOptionsOutOfRange) {
  EXPECT_DEATH(make(0, 16, 9), "dim");
  EXPECT_DEATH(make(8, 0, 9), "tables");
  EXPECT_DEATH(make(8, kMaxTables + 1, 9), "tables");
  EXPECT_DEATH(make(8, 16, 0), "bits");
  EXPECT_DEATH(make(8, 16, kMaxBits + 1), "bits");
}

INSTANTIATE_TEST_SUITE_P(Families, EachFamily, testing::ValuesIn(all_values<HashFamilyKind>()),
                         [](const auto& family) { return std::string(spelling(family.param)); });

// All buckets of a table are used, and none much more than the others.
TEST(HashFamily, DwtaAndSimHashUseAllBucketsAlike) {
  constexpr int kVectors = 4000, kBuckets = 16;
  for (HashFamilyKind kind : {HashFamilyKind::kDwta, HashFamilyKind::kSimHash}) {
    const auto family = make_hash_family({kind, 128, 8, 4, 5});
    std::vector<int> uses(8 * kBuckets, 0);
    Rng rng(6);
    for (int i = 0; i < kVectors; ++i) {
      const std::vector<uint32_t> codes = codes_of(*family, normal_vector(128, rng));
      for (size_t t = 0; t < codes.size(); ++t) ++uses[t * kBuckets + codes[t]];
    }
    EXPECT_THAT(uses,
                Each(testing::AllOf(testing::Gt(kVectors / kBuckets / 2), Lt(kVectors / kBuckets * 2))));
  }
}

// The structured projections behave like independent random ones: (1 - angle / pi) ^ bits.
TEST(SimHash, CollisionRateIsTheOneOfTheory) {
  for (size_t dim : {100, 128}) {
    for (uint32_t bits : {1, 4, 9}) {
      const auto family = make_hash_family({HashFamilyKind::kSimHash, dim, 128, bits, 5});
      for (double cosine : {0.0, 0.5, 0.9}) {
        const double expected = std::pow(1 - std::acos(cosine) / std::numbers::pi, bits);
        EXPECT_NEAR(collision_rate(*family, cosine), expected, 0.02) << dim << " " << bits << " " << cosine;
      }
    }
  }
}

TEST(SimHash, OppositeVectorsNeverCollideOnOneBit) {
  const auto family = make_hash_family({HashFamilyKind::kSimHash, 128, 256, 1, 5});
  Rng rng(8);
  const std::vector<float> x = normal_vector(128, rng);
  std::vector<float> opposite = x;
  for (float& value : opposite) value = -value;
  EXPECT_EQ(collisions(*family, x, opposite), 0);
}

// Winner-take-all sees only the order: any increasing map of the values leaves the codes unchanged.
TEST(Dwta, DependsOnOrderOnly) {
  const auto family = make_hash_family({HashFamilyKind::kDwta, 128, 32, 10, 5});
  Rng rng(9);
  const std::vector<float> x = normal_vector(128, rng);
  std::vector<float> mapped = x;
  for (float& value : mapped) value = std::exp(value) + 2;
  EXPECT_EQ(codes_of(*family, x), codes_of(*family, mapped));
}

// Vectors that agree in nothing agree in a bin of 8 with probability 1/8, and in a table of 3 bins with
// probability 1/512.
TEST(Dwta, UnrelatedVectorsCollideByChanceOnly) {
  const auto family = make_hash_family({HashFamilyKind::kDwta, 128, 512, 9, 5});
  EXPECT_NEAR(collision_rate(*family, 0), 1.0 / 512, 0.0005);
  const auto uneven = make_hash_family({HashFamilyKind::kDwta, 128, 512, 5, 5});
  EXPECT_NEAR(collision_rate(*uneven, 0), 1.0 / 32, 0.003);
}

// Tables of one value collide as often as the sets overlap, plus the probability that two values share a
// bucket.
TEST(MinHash, CollisionRateIsTheJaccardSimilarity) {
  constexpr size_t kWide = 1024, kSet = kWide / 8;
  for (size_t common : {16, 64, 96, 120}) {
    double rate = 0;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      std::vector<float> x(kWide, 0.0f), y(kWide, 0.0f);
      std::fill_n(x.begin() + 300, kSet, 1.0f);
      std::fill_n(y.begin() + 300 + kSet - common, kSet, 1.0f);
      rate += collisions(*make_hash_family({HashFamilyKind::kMinHash, kWide, 64, 7, seed}), x, y) / 100;
    }
    const double jaccard = static_cast<double>(common) / static_cast<double>(2 * kSet - common);
    EXPECT_NEAR(rate, jaccard + (1 - jaccard) / 128, 0.02) << common;
  }
}

// Only the largest components and their signs count.
TEST(MinHash, IgnoresSmallComponentsAndSeesSigns) {
  const auto family = make_hash_family({HashFamilyKind::kMinHash, 64, 128, 4, 5});
  Rng rng(10);
  std::vector<float> x(64), y(64), negated(64);
  for (size_t i = 0; i < 64; ++i) {
    const bool large = i % 8 == 0;
    x[i] = large ? 2 + rng.uniform() : rng.uniform();
    y[i] = large ? 5 - x[i] : -rng.uniform();
    negated[i] = -x[i];
  }
  EXPECT_EQ(collisions(*family, x, y), 1);
  EXPECT_LT(collisions(*family, x, negated), 0.2);
}

// Of equally large components, those of lower index form the set.
TEST(MinHash, TiesGoToTheLowerIndex) {
  const auto family = make_hash_family({HashFamilyKind::kMinHash, 64, 128, 8, 5});
  std::vector<float> ones(64, 1.0f), first(64, 0.0f);
  std::fill_n(first.begin(), 64 / 8, 1.0f);
  EXPECT_EQ(collisions(*family, ones, first), 1);
}

}  // namespace
}  // namespace modelet::hashing
