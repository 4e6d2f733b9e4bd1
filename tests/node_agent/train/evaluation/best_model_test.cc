#include "node_agent/train/evaluation/best_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace modelet::agent {
namespace {

using nlohmann::json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What a checkpoint keeps: text.
BestModel stored(const BestModel& best) {
  return BestModel::restore(json::parse(best.state().dump()), "auc");
}

TEST(BestModelTest, TheHighestFigureIsTheBestAndAmongEqualsTheFirst) {
  BestModel best;
  best.add(1, {{"auc", 0.5}}, "auc");
  best.add(2, {{"auc", 0.7}}, "auc");
  best.add(3, {{"auc", 0.7}}, "auc");
  EXPECT_EQ(best.step(), 2u);
  EXPECT_TRUE(stored(best).exhausted(1));
  EXPECT_FALSE(stored(best).exhausted(2));
}

TEST(BestModelTest, AFigureThatIsNoNumberIsWorseThanAnyNumber) {
  BestModel best;
  best.add(1, {{"auc", kNan}}, "auc");
  best.add(2, {{"auc", kNan}}, "auc");
  EXPECT_EQ(best.step(), 1u);
  EXPECT_TRUE(best.exhausted(1)) << "nothing better was found";
  best = stored(best);
  best.add(3, {{"auc", kNan}}, "auc");
  EXPECT_EQ(best.step(), 1u) << "also after a resume";
  best.add(4, {{"auc", 0.1}}, "auc");
  best.add(5, {{"auc", kNan}}, "auc");
  EXPECT_EQ(best.step(), 4u);
  EXPECT_TRUE(best.exhausted(1));
}

TEST(BestModelTest, RefusesWhatItDidNotWrite) {
  for (const char* state : {"{}", R"({"step": 1, "figures": {}, "worse_since": 0})",
                            R"({"step": 1, "figures": {"auc": "high"}, "worse_since": 0})"})
    EXPECT_THROW(BestModel::restore(json::parse(state), "auc"), FormatError) << state;
}

}  // namespace
}  // namespace modelet::agent
