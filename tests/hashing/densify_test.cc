#include "hashing/densify.h"

#include <gmock/gmock.h>

#include <map>
#include <vector>

namespace modelet::hashing {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(Densify, LeavesFilledBinsAlone) {
  std::vector<uint32_t> bins = {3, 0, kMaxBinValue};
  densify(bins, 1);
  EXPECT_THAT(bins, ElementsAre(3, 0, kMaxBinValue));
}

TEST(Densify, AllEmptyBecomesZero) {
  std::vector<uint32_t> bins(5, kEmptyBin);
  densify(bins, 1);
  EXPECT_THAT(bins, Each(0));
}

TEST(Densify, OneFilledBinFillsAll) {
  std::vector<uint32_t> bins(64, kEmptyBin);
  bins[17] = 5;
  densify(bins, 1);
  EXPECT_THAT(bins, Each(5));
}

// Over bins and seeds, copies come from all filled bins about equally often, and never from an empty bin.
TEST(Densify, DonorsAreUniform) {
  std::map<uint32_t, int> copies;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::vector<uint32_t> bins(100, kEmptyBin);
    for (uint32_t filled : {0u, 1u, 50u, 99u}) bins[filled] = filled;
    densify(bins, seed);
    for (uint32_t value : bins) ++copies[value];
  }
  ASSERT_EQ(copies.size(), 4u);
  for (const auto& [value, count] : copies) EXPECT_NEAR(count, 2500, 250) << value;
}

// The value that a bin copies does not depend on which other bins are empty, as long as its donor is the
// same.
TEST(Densify, VectorsThatAgreeInTheDonorAgreeInTheCopy) {
  std::vector<uint32_t> a(32, kEmptyBin), b(32, kEmptyBin);
  for (size_t i = 0; i < 8; ++i) a[4 * i] = b[4 * i] = static_cast<uint32_t>(i);
  b[12] = 77;  // one filled bin differs
  densify(a, 9);
  densify(b, 9);
  for (size_t i = 0; i < 32; ++i) EXPECT_TRUE(a[i] == b[i] || (a[i] == 3 && b[i] == 77)) << i;
}

}  // namespace
}  // namespace modelet::hashing
