#include "shard/synth/synth_clicks.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "shard/data/encode/columns_encoder.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using testing::bytes_of;
using testing::TemporaryFolder;

double probability(double log_odds) { return 1 / (1 + std::exp(-log_odds)); }

TEST(SynthClicks, RowsDependOnSeedSplitAndPlaceAlone) {
  ClickGenerator a(1), b(1), other(2);
  const std::string first(a.click(Split::kTrain, 5).line);
  b.click(Split::kTest, 5);
  b.click(Split::kTrain, 6);
  EXPECT_EQ(b.click(Split::kTrain, 5).line, first);
  EXPECT_NE(a.click(Split::kTest, 5).line, first);
  EXPECT_NE(a.click(Split::kTrain, 6).line, first);
  EXPECT_NE(other.click(Split::kTrain, 5).line, first);
}

// Among rows of similar odds, the share of clicks equals their probability.
TEST(SynthClicks, ClicksFollowTheirOdds) {
  constexpr size_t kRows = 50'000, kBins = 10;
  ClickGenerator generator(1);
  std::vector<std::pair<double, bool>> rows;
  for (uint64_t row = 0; row < kRows; ++row) {
    const Click click = generator.click(Split::kTest, row);
    EXPECT_EQ(click.line.front(), click.clicked ? '1' : '0');
    rows.emplace_back(probability(click.log_odds), click.clicked);
  }
  std::sort(rows.begin(), rows.end());
  for (size_t bin = 0; bin < kBins; ++bin) {
    double expected = 0, variance = 0, clicks = 0;
    for (size_t i = bin * kRows / kBins; i < (bin + 1) * kRows / kBins; ++i) {
      expected += rows[i].first;
      variance += rows[i].first * (1 - rows[i].first);
      clicks += rows[i].second ? 1 : 0;
    }
    EXPECT_NEAR(clicks, expected, 4 * std::sqrt(variance)) << bin;
  }
}

// An additive model cannot learn the interactions: they are uncorrelated with the additive effects.
TEST(SynthClicks, InteractionsAreNotAdditive) {
  ClickGenerator generator(1);
  double sum = 0, products = 0, squares = 0, additive_squares = 0, additive_sum = 0;
  constexpr int kRows = 20'000;
  for (uint64_t row = 0; row < kRows; ++row) {
    const Click click = generator.click(Split::kTrain, row);
    const double interaction = click.log_odds - click.additive_log_odds;
    sum += interaction;
    squares += interaction * interaction;
    additive_sum += click.additive_log_odds;
    additive_squares += click.additive_log_odds * click.additive_log_odds;
    products += interaction * click.additive_log_odds;
  }
  const double mean = sum / kRows, additive_mean = additive_sum / kRows;
  const double deviation = std::sqrt(squares / kRows - mean * mean);
  const double additive_deviation = std::sqrt(additive_squares / kRows - additive_mean * additive_mean);
  EXPECT_GT(deviation, 0.5);
  EXPECT_NEAR(mean, 0, 0.05);
  EXPECT_NEAR((products / kRows - mean * additive_mean) / (deviation * additive_deviation), 0, 0.03);
}

TEST(SynthClicks, FilesAreInCriteosLayoutAndTheTruthIsOfTheTestRows) {
  const TemporaryFolder folder;
  const ClickOptions options{.rows_train = 500, .rows_test = 800, .seed = 3};
  const ClickTruth truth = write_clicks(options, folder.path());
  const auto encoder = ColumnsEncoder::fit({.format = DataFormat::kCriteo}, folder / "train.tsv", {});
  const auto reader = encoder->open(folder / "test.tsv");
  ClickGenerator generator(options.seed);
  std::vector<double> positives, negatives, additive_positives, additive_negatives;
  double loss = 0;
  Sample sample;
  for (uint64_t row = 0; row < options.rows_test; ++row) {
    ASSERT_TRUE(reader->next(sample));
    const Click click = generator.click(Split::kTest, row);
    ASSERT_EQ(sample.labels.size(), click.clicked ? 1u : 0u);
    (click.clicked ? positives : negatives).push_back(click.log_odds);
    (click.clicked ? additive_positives : additive_negatives).push_back(click.additive_log_odds);
    const double p = probability(click.log_odds);
    loss -= std::log(click.clicked ? p : 1 - p);
  }
  EXPECT_FALSE(reader->next(sample));
  const auto pairs_in_order = [](const std::vector<double>& above, const std::vector<double>& below) {
    double right = 0;
    for (const double a : above)
      for (const double b : below) right += a > b ? 1 : 0;
    return right / static_cast<double>(above.size() * below.size());
  };
  EXPECT_NEAR(truth.auc, pairs_in_order(positives, negatives), 1e-5);
  EXPECT_NEAR(truth.additive_auc, pairs_in_order(additive_positives, additive_negatives), 1e-5);
  EXPECT_NEAR(truth.log_loss, loss / static_cast<double>(options.rows_test), 1e-6);
  EXPECT_NEAR(truth.click_rate,
              static_cast<double>(positives.size()) / static_cast<double>(options.rows_test), 1e-12);
  EXPECT_GT(truth.auc, truth.additive_auc + 0.03);
  const auto json = nlohmann::json::parse(bytes_of(folder / "truth.json"));
  EXPECT_EQ(json.at("auc"), truth.auc);
  EXPECT_EQ(json.at("log_loss"), truth.log_loss);
  EXPECT_EQ(json.at("rows_test"), options.rows_test);
}

TEST(SynthClicks, RefusesImpossibleSizes) {
  const TemporaryFolder folder;
  EXPECT_THROW(write_clicks({.rows_train = 0}, folder.path()), UsageError);
  EXPECT_THROW(write_clicks({.rows_test = uint64_t{1} << 31}, folder.path()), UsageError);
}

}  // namespace
}  // namespace modelet::shard
