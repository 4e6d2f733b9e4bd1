#include "shard/inference/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

// Outcomes of labels that are right with a certain probability: `odds_of` maps the log odds of p to the log
// odds of being right.
template <class OddsOf>
std::vector<Outcome> drawn_outcomes(size_t count, uint64_t seed, const OddsOf& odds_of) {
  Rng rng(seed);
  std::vector<Outcome> outcomes;
  for (size_t i = 0; i < count; ++i) {
    const double x = -6 + 9 * rng.uniform();  // log odds of p
    const LogOdds odds{-std::log1p(std::exp(-x)), -std::log1p(std::exp(x))};
    outcomes.push_back({odds, rng.uniform() < 1 / (1 + std::exp(-odds_of(x)))});
  }
  return outcomes;
}

TEST(CalibrationTest, FindsHowSureTheModelMayBe) {
  // The scores are twice too sure of everything, and the labels are half as often right.
  const auto odds_of = [](double x) { return 0.5 * x - 0.7; };
  const auto known = drawn_outcomes(20000, 1, odds_of), others = drawn_outcomes(20000, 2, odds_of);
  const Calibration fitted = fit_calibration(known);
  EXPECT_NEAR(fitted.a, 0.5, 0.15);
  EXPECT_NEAR(fitted.b, 0.5, 0.15);
  EXPECT_NEAR(fitted.c, -0.7, 0.3);
  EXPECT_GT(calibration_error({}, others), 0.1);
  EXPECT_LT(calibration_error(fitted, others), 0.02);
}

TEST(CalibrationTest, LeavesAloneWhatIsRight) {
  const Calibration fitted = fit_calibration(drawn_outcomes(20000, 3, [](double x) { return x; }));
  EXPECT_NEAR(fitted.a, 1, 0.15);
  EXPECT_NEAR(fitted.b, 1, 0.15);
  EXPECT_NEAR(fitted.c, 0, 0.3);
}

TEST(CalibrationTest, KeepsTheOrderAndStaysFiniteWhateverItSees) {
  // Outcomes that fall with the score, that are never right, that are always right, and none at all.
  const auto falling = drawn_outcomes(2000, 4, [](double x) { return -x; });
  const auto none = drawn_outcomes(100, 5, [](double) { return -1e9; });
  const auto all = drawn_outcomes(100, 6, [](double) { return 1e9; });
  for (const auto& outcomes : {falling, none, all, std::vector<Outcome>()}) {
    const Calibration fitted = fit_calibration(outcomes);
    double before = 0;
    for (double x = -20; x < 20; x += 0.5) {
      const double p = probability(fitted, {-std::log1p(std::exp(-x)), -std::log1p(std::exp(x))});
      EXPECT_TRUE(p >= before && p <= 1) << p;
      before = p;
    }
  }
}

TEST(CalibrationTest, ProbabilitiesAddUpToOneBeforeTheyAreCalibrated) {
  const std::vector<float> scores = {30, 29.5, 29.5, 3, -2};
  std::vector<LogOdds> odds(scores.size());
  uncalibrated(Loss::kSoftmax, scores, odds);
  double sum = 0, exponentials = 0;
  for (const float score : scores) exponentials += std::exp(double{score});
  for (size_t i = 0; i < scores.size(); ++i) {
    const double p = probability({}, odds[i]);
    sum += p;
    EXPECT_NEAR(p, std::exp(double{scores[i]}) / exponentials, 1e-8);
  }
  EXPECT_NEAR(sum, 1, 1e-6);
  uncalibrated(Loss::kSigmoid, scores, odds);
  for (size_t i = 0; i < scores.size(); ++i)
    EXPECT_NEAR(probability({}, odds[i]), 1 / (1 + std::exp(-double{scores[i]})), 1e-8);
}

TEST(CalibrationTest, AFileIsOfOneModel) {
  const testing::TemporaryFolder folder;
  const Calibration written{.a = 0.5, .b = 1.25, .c = -3, .rows = 70};
  ASSERT_TRUE(write_calibration(folder / "c.json", 77, written));
  const auto read = read_calibration(folder / "c.json", 77);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->a, 0.5);
  EXPECT_EQ(read->b, 1.25);
  EXPECT_EQ(read->c, -3);
  EXPECT_EQ(read->rows, 70u);
  EXPECT_FALSE(read_calibration(folder / "c.json", 78));
  EXPECT_FALSE(read_calibration(folder / "none.json", 77));
  EXPECT_FALSE(read_calibration(folder.write("d.json", "{\"version\":1,\"model\":77,\"a\":-1}"), 77));
  EXPECT_FALSE(write_calibration(folder / "nowhere" / "c.json", 77, written));
}

}  // namespace
}  // namespace modelet::shard
