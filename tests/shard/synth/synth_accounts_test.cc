#include "shard/synth/synth_accounts.h"

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "shard/inference/metrics.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

std::vector<std::vector<std::string>> accounts_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    auto& row = rows.emplace_back();
    for (std::string field; std::getline(fields, field, ',');) row.push_back(field);
  }
  rows.erase(rows.begin());
  return rows;
}

// The mean amount of the neighbours says more of a fraud than the account's own, and less than the truth.
TEST(SynthAccounts, FraudFollowsFromTheNeighbours) {
  const testing::TemporaryFolder folder;
  const AccountTruth truth = write_accounts({.rows_train = 3000, .rows_test = 2000, .seed = 2}, folder.path());
  const auto rows = accounts_in(folder / "nodes.csv");
  ASSERT_EQ(rows.size(), 5000u);
  std::map<std::string, size_t> place;
  for (size_t i = 0; i < rows.size(); ++i) place[rows[i][0]] = i;
  std::vector<double> sums(rows.size()), degrees(rows.size());
  for (const auto& edge : accounts_in(folder / "edges.csv")) {
    const size_t a = place.at(edge[0]), b = place.at(edge[1]);
    sums[a] += std::log1p(std::stod(rows[b][2]));
    sums[b] += std::log1p(std::stod(rows[a][2]));
    ++degrees[a];
    ++degrees[b];
  }
  std::vector<float> fraud, honest, own_fraud, own_honest;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i][1] != "test") continue;
    (rows[i][5] == "1" ? fraud : honest).push_back(static_cast<float>(degrees[i] > 0 ? sums[i] / degrees[i] : 0));
    (rows[i][5] == "1" ? own_fraud : own_honest).push_back(std::stof(rows[i][2]));
  }
  EXPECT_EQ(fraud.size() + honest.size(), 2000u);
  EXPECT_DOUBLE_EQ(truth.fraud_rate, static_cast<double>(fraud.size()) / 2000);
  EXPECT_NEAR(truth.own_auc, area_under_curve(own_fraud, own_honest), 1e-6) << "the odds rise with the amount";
  const double by_neighbours = area_under_curve(fraud, honest);
  EXPECT_GT(by_neighbours, truth.own_auc + 0.02);
  EXPECT_LT(by_neighbours, truth.auc - 0.02);
  EXPECT_LT(truth.auc, 0.99);
  const auto written = nlohmann::json::parse(testing::bytes_of(folder / "truth.json"));
  EXPECT_EQ(written["auc"], truth.auc);
  // The same again.
  write_accounts({.rows_train = 3000, .rows_test = 2000, .seed = 2}, folder / "again");
  EXPECT_EQ(testing::bytes_of(folder / "again/nodes.csv"), testing::bytes_of(folder / "nodes.csv"));
  EXPECT_EQ(testing::bytes_of(folder / "again/edges.csv"), testing::bytes_of(folder / "edges.csv"));
  EXPECT_THROW(write_accounts({.rows_train = 0}, folder.path()), UsageError);
}

}  // namespace
}  // namespace modelet::shard
