// The spellings of the choices in an experiment, and the tables that have a row for each choice.
#include "base/experiment/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace modelet {
namespace {

TEST(Choices, ValuesAndSpellingsStandInOneOrder) {
  EXPECT_THAT(
      all_values<HashFamilyKind>(),
      testing::ElementsAre(HashFamilyKind::kDwta, HashFamilyKind::kSimHash, HashFamilyKind::kMinHash));
  EXPECT_EQ(spelling(SamplingMode::kLshPerSample), "lsh_per_sample");
  EXPECT_EQ(spelling(RetrievalKind::kLowRank), "preview");  // existing files use this word
}

TEST(Choices, ATableFindsTheRowOfAValue) {
  static constexpr ByChoice<Loss, int> kTable({{Loss::kSoftmax, 3}, {Loss::kSigmoid, 5}});
  static_assert(kTable[Loss::kSigmoid] == 5);
  EXPECT_EQ(kTable[Loss::kSoftmax], 3);
  EXPECT_DEATH(std::ignore = kTable[static_cast<Loss>(2)], "unknown value");
}

}  // namespace
}  // namespace modelet
