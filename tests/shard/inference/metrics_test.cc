// Metrics compared with an independent reference (tests/golden/make_metrics_golden.py), and cases that the
// reference leaves out.
#include "shard/inference/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace modelet::shard {
namespace {

using nlohmann::json;

using Labels = std::vector<uint32_t>;

// A batch of samples of which only the labels matter.
Batch batch_of(const std::vector<Labels>& truth) {
  Batch batch;
  batch.offsets.assign(truth.size() + 1, 0);
  batch.label_offsets = {0};
  for (const Labels& labels : truth) {
    batch.labels.insert(batch.labels.end(), labels.begin(), labels.end());
    batch.label_offsets.push_back(batch.labels.size());
  }
  return batch;
}

TopK best_of(const std::vector<std::vector<float>>& scores, size_t k) {
  TopK best;
  best.reset(scores.size(), k);
  for (size_t s = 0; s < scores.size(); ++s)
    for (uint32_t label = 0; label < scores[s].size(); ++label) best.insert(s, scores[s][label], label);
  return best;
}

std::map<std::string, double> named(const Metrics& metrics) {
  std::map<std::string, double> result;
  for (const Figure& figure : metrics.figures()) result[figure.name] = figure.value;
  return result;
}

TEST(MetricsTest, EqualTheReference) {
  std::ifstream file(MODELET_METRICS_GOLDEN);
  const json golden = json::parse(file);
  const auto truth = golden["truth"].get<std::vector<Labels>>();
  const auto scores = golden["scores"].get<std::vector<std::vector<float>>>();
  for (const json& golden_case : golden["cases"]) {
    const Experiment::Metrics options{golden_case["propensity_a"], golden_case["propensity_b"]};
    Metrics metrics(golden["ks"],
                    inverse_propensities(golden["counts"].get<Labels>(), golden["rows"], options),
                    scores[0].size());
    // The samples are added in two parts, like batches.
    const auto half = static_cast<std::ptrdiff_t>(truth.size() / 3);
    metrics.add(batch_of({truth.begin(), truth.begin() + half}),
                best_of({scores.begin(), scores.begin() + half}, metrics.depth()));
    metrics.add(batch_of({truth.begin() + half, truth.end()}),
                best_of({scores.begin() + half, scores.end()}, metrics.depth()));
    const auto actual = named(metrics);
    const auto expected = golden_case["figures"].get<std::map<std::string, double>>();
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [name, value] : expected) EXPECT_NEAR(actual.at(name), value, 1e-7) << name;
  }
}

TEST(MetricsTest, OnlyWhatWasAskedFor) {
  Metrics metrics({2, 4}, {}, 0);
  EXPECT_EQ(metrics.depth(), 4u);
  const auto figures = named(metrics);
  EXPECT_EQ(figures.size(), 8u) << "p, ndcg, recall, mrr";
  for (const auto& [name, value] : figures) EXPECT_EQ(value, 0) << name << ", nothing added";
  EXPECT_EQ(Metrics({2}, {}, 30).depth(), 30u);
}

TEST(MetricsTest, UnfilledPlacesAreMisses) {
  Metrics metrics({3}, {1, 1, 1}, 0);
  TopK best;
  best.reset(1, 3);
  best.insert(0, 1, 2);
  metrics.add(batch_of({{0, 2}}), best);
  const auto figures = named(metrics);
  EXPECT_DOUBLE_EQ(figures.at("p_at_3"), 1.0 / 3);
  EXPECT_DOUBLE_EQ(figures.at("recall_at_3"), 0.5);
  EXPECT_DOUBLE_EQ(figures.at("mrr_at_3"), 1);
  EXPECT_DOUBLE_EQ(figures.at("psp_at_3"), 0.5);
}

TEST(MetricsTest, AucNeedsAllScoresAndBothClasses) {
  Metrics missing({1}, {}, 2), one_class({1}, {}, 2);
  missing.add(batch_of({{0}, {1}}), best_of({{0.5f, 0.25f}, {1.0f}}, 2));
  EXPECT_TRUE(std::isnan(named(missing).at("auc")));
  EXPECT_TRUE(std::isnan(named(missing).at("log_loss")));
  one_class.add(batch_of({{0, 1}}), best_of({{0.5f, 0.25f}}, 2));
  EXPECT_TRUE(std::isnan(named(one_class).at("auc")));
  EXPECT_NEAR(named(one_class).at("log_loss"), (std::log1p(std::exp(-0.5)) + std::log1p(std::exp(-0.25))) / 2,
              1e-12);
  EXPECT_TRUE(has_auc(Loss::kSigmoid, 1));
  EXPECT_FALSE(has_auc(Loss::kSigmoid, kMostLabelsForAuc + 1));
  EXPECT_FALSE(has_auc(Loss::kSoftmax, 2));
}

TEST(MetricsTest, LogLossOfExtremeScoresIsFinite) {
  Metrics metrics({1}, {}, 2);
  metrics.add(batch_of({{0}}), best_of({{-1000.0f, 1000.0f}}, 2));
  EXPECT_NEAR(named(metrics).at("log_loss"), 1000, 1e-9);
  EXPECT_EQ(named(metrics).at("auc"), 0);
}

TEST(MetricsTest, FewRowsGiveNoNegativeWeights) {
  for (const float inverse : inverse_propensities(Labels{0, 1, 2}, 2, {}))
    EXPECT_EQ(inverse, 1.0f) << "ln(2) - 1 is negative";
}

}  // namespace
}  // namespace modelet::shard
