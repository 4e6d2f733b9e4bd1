#include "hashing/bucket_tables.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/rng.h"

namespace modelet::hashing {
namespace {

using testing::ElementsAreArray;
using testing::IsEmpty;

std::vector<uint32_t> random_codes(size_t rows, uint32_t bits, uint64_t seed) {
  Rng rng(seed);
  std::vector<uint32_t> codes(rows);
  for (uint32_t& code : codes) code = rng.below(1u << bits);
  return codes;
}

std::vector<uint32_t> contents(const BucketTables& tables, uint32_t table, uint32_t code) {
  const auto rows = tables.bucket(table, code);
  return {rows.begin(), rows.end()};
}

TEST(BucketTables, HoldEachRowInItsBucket) {
  constexpr uint32_t kBits = 5;
  BucketTables tables({3, kBits, 1000, 1}, 500);
  for (uint32_t t : {2u, 0u, 1u}) tables.build_table(t, random_codes(500, kBits, t));
  for (uint32_t t = 0; t < 3; ++t) {
    const std::vector<uint32_t> codes = random_codes(500, kBits, t);
    std::map<uint32_t, std::vector<uint32_t>> expected;
    for (uint32_t row = 0; row < 500; ++row) expected[codes[row]].push_back(row);
    for (uint32_t b = 0; b < 1u << kBits; ++b)
      EXPECT_THAT(tables.bucket(t, b), ElementsAreArray(expected[b]));
  }
}

TEST(BucketTables, AreEmptyBeforeBuildingAndWithoutRows) {
  const BucketTables unbuilt({2, 4, 8, 1}, 10);
  BucketTables none({2, 4, 8, 1}, 0);
  none.build_table(1, {});
  for (uint32_t b = 0; b < 16; ++b) {
    EXPECT_THAT(unbuilt.bucket(1, b), IsEmpty());
    EXPECT_THAT(none.bucket(1, b), IsEmpty());
  }
}

TEST(BucketTables, RebuildingReplacesATable) {
  BucketTables once({2, 4, 8, 1}, 300), twice({2, 4, 8, 1}, 300);
  for (uint32_t t : {0u, 1u}) twice.build_table(t, random_codes(300, 4, 77 + t));
  for (uint32_t t : {0u, 1u}) {
    once.build_table(t, random_codes(300, 4, t));
    twice.build_table(t, random_codes(300, 4, t));
  }
  for (uint32_t b = 0; b < 16; ++b) EXPECT_EQ(contents(once, 1, b), contents(twice, 1, b));
}

TEST(BucketTables, CapacityIsKept) {
  constexpr size_t kRows = 1000;
  for (uint32_t capacity : {1u, 7u, 62u, 63u}) {
    BucketTables tables({1, 4, capacity, 1}, kRows);
    const std::vector<uint32_t> codes = random_codes(kRows, 4, 3);
    tables.build_table(0, codes);
    for (uint32_t b = 0; b < 16; ++b) {
      const std::vector<uint32_t> rows = contents(tables, 0, b);
      const size_t members = static_cast<size_t>(std::count(codes.begin(), codes.end(), b));
      EXPECT_EQ(rows.size(), std::min<size_t>(members, capacity));
      EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
      EXPECT_EQ(std::set<uint32_t>(rows.begin(), rows.end()).size(), rows.size());
      for (uint32_t row : rows) EXPECT_EQ(codes[row], b);
    }
  }
}

// Whether a row stays in a full bucket depends only on its priority compared with the other rows. If a row
// that was dropped leaves, nothing changes. If a row that stayed leaves, the others stay and exactly one row
// moves up.
TEST(BucketTables, ChoiceIsOrderFree) {
  constexpr uint32_t kCapacity = 10;
  BucketTables before({1, 1, kCapacity, 1}, 40), after({1, 1, kCapacity, 1}, 40);
  before.build_table(0, std::vector<uint32_t>(40, 0));
  const std::vector<uint32_t> stayed = contents(before, 0, 0);
  for (uint32_t leaver = 0; leaver < 40; ++leaver) {
    std::vector<uint32_t> codes(40, 0);
    codes[leaver] = 1;
    after.build_table(0, codes);
    const std::vector<uint32_t> now = contents(after, 0, 0);
    std::vector<uint32_t> common;
    std::set_intersection(stayed.begin(), stayed.end(), now.begin(), now.end(), std::back_inserter(common));
    const bool had_stayed = std::binary_search(stayed.begin(), stayed.end(), leaver);
    EXPECT_EQ(now.size(), kCapacity);
    EXPECT_EQ(common.size(), had_stayed ? kCapacity - 1 : kCapacity) << leaver;
  }
}

// Over many tables and seeds every row stays about equally often, and tables choose different rows.
TEST(BucketTables, ChoiceIsFairAndDiffersBetweenTables) {
  constexpr uint32_t kTables = 200, kRows = 40, kCapacity = 10;
  BucketTables tables({kTables, 1, kCapacity, 1}, kRows), other_seed({kTables, 1, kCapacity, 2}, kRows);
  std::vector<int> stays(kRows, 0);
  std::set<std::vector<uint32_t>> choices;
  for (uint32_t t = 0; t < kTables; ++t) {
    tables.build_table(t, std::vector<uint32_t>(kRows, 1));
    other_seed.build_table(t, std::vector<uint32_t>(kRows, 1));
    for (uint32_t row : tables.bucket(t, 1)) ++stays[row];
    choices.insert(contents(tables, t, 1));
    EXPECT_NE(contents(tables, t, 1), contents(other_seed, t, 1));
  }
  EXPECT_EQ(choices.size(), kTables);
  for (int count : stays) EXPECT_NEAR(count, kTables * kCapacity / kRows, 30);
}

// If there is room for all rows, renaming the rows renames the contents of the buckets and changes nothing
// else.
TEST(BucketTables, PermutingRowsPermutesContents) {
  constexpr size_t kRows = 300;
  const std::vector<uint32_t> codes = random_codes(kRows, 4, 5);
  std::vector<uint32_t> new_name(kRows), renamed(kRows);
  std::iota(new_name.begin(), new_name.end(), 0);
  Rng rng(6);
  for (size_t i = kRows; i > 1; --i)
    std::swap(new_name[i - 1], new_name[rng.below(static_cast<uint32_t>(i))]);
  for (size_t row = 0; row < kRows; ++row) renamed[new_name[row]] = codes[row];
  BucketTables tables({1, 4, kRows, 1}, kRows), permuted({1, 4, kRows, 1}, kRows);
  tables.build_table(0, codes);
  permuted.build_table(0, renamed);
  for (uint32_t b = 0; b < 16; ++b) {
    std::vector<uint32_t> expected;
    for (uint32_t row : tables.bucket(0, b)) expected.push_back(new_name[row]);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(contents(permuted, 0, b), expected);
  }
}

TEST(BucketTables, MemoryIsWhatTheBucketsCanHold) {
  const size_t small = BucketTables({4, 4, 8, 1}, 100000).memory_bytes();
  EXPECT_EQ(small, 4 * (17 + 16 * 8) * sizeof(uint32_t));
  EXPECT_EQ(BucketTables({4, 4, 100000, 1}, 1000).memory_bytes(), 4 * (17 + 1000) * sizeof(uint32_t));
}

}  // namespace
}  // namespace modelet::hashing
