#include "shard/synth/synth_accounts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/file.h"
#include "shard/inference/metrics.h"

namespace modelet::shard {
namespace {

// Keys after kStreamSynth; those of the click logs lie below.
enum AccountStream : uint64_t { kAccount = 200, kGroup, kEdges, kPart };

constexpr uint64_t kMostAccounts = 10'000'000;
constexpr uint32_t kGroupSize = 25;       // accounts that mostly know each other
constexpr uint32_t kEdgesOfAccount = 4;   // that an account begins
constexpr double kInGroup = 0.8;          // share of these that stay in the group
constexpr std::array<double, 8> kCountries = {0, 0, 0, 0.2, -0.3, 0.8, 1.6, -0.6};  // log-odds
// Of the log-odds: what the account shows, and the mean of what its neighbours show.
constexpr double kFraudBias = -3.2, kAmount = 0.35, kNeighbourAmount = 1.5, kNeighbourCountry = 2;
constexpr double kLogAmount = 4, kLogAge = 5;  // means

struct Account {
  int64_t amount = 0, age = 0;
  uint32_t country = 0;

  // From the rounded number: the odds follow from what the row shows.
  double size() const { return std::log1p(static_cast<double>(amount)) - kLogAmount; }
  double own_odds() const { return kFraudBias + kAmount * size(); }
};

Account draw_account(const AccountOptions& options, uint64_t number) {
  Rng group(options.seed, {kStreamSynth, kGroup, number / kGroupSize});
  Rng own(options.seed, {kStreamSynth, kAccount, number});
  const double richness = group.normal();
  const uint32_t home = group.below(kCountries.size());
  Account account;
  account.amount = static_cast<int64_t>(std::exp(kLogAmount + 0.7 * richness + 0.7 * double{own.normal()}));
  account.age = static_cast<int64_t>(std::exp(kLogAge + double{own.normal()}));
  account.country = own.uniform_double() < 0.5 ? home : own.below(kCountries.size());
  return account;
}

std::vector<std::pair<uint32_t, uint32_t>> draw_edges(const AccountOptions& options, uint32_t accounts) {
  std::vector<std::pair<uint32_t, uint32_t>> edges;
  for (uint32_t from = 0; from < accounts; ++from) {
    Rng rng(options.seed, {kStreamSynth, kEdges, from});
    const uint32_t first = from / kGroupSize * kGroupSize, size = std::min(kGroupSize, accounts - first);
    for (uint32_t i = 0; i < kEdgesOfAccount; ++i) {
      const bool near = rng.uniform_double() < kInGroup;
      const uint32_t to = near ? first + rng.below(size) : rng.below(accounts);
      if (from != to) edges.emplace_back(std::min(from, to), std::max(from, to));
    }
  }
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

void write_file(const std::filesystem::path& path, const std::string& text, Existing existing) {
  AtomicFile file(path, existing);
  file.write(text);
  file.commit();
}

}  // namespace

AccountTruth write_accounts(const AccountOptions& options, const std::filesystem::path& folder, Existing existing) {
  for (const uint64_t rows : {options.rows_train, options.rows_test})
    if (rows == 0 || rows > kMostAccounts)
      throw UsageError("synthetic accounts: rows must lie between 1 and " + std::to_string(kMostAccounts));
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw Error(folder.string() + ": " + failure.message());
  const auto count = static_cast<uint32_t>(options.rows_train + options.rows_test);
  std::vector<Account> accounts;
  for (uint32_t number = 0; number < count; ++number) accounts.push_back(draw_account(options, number));
  std::vector<double> risk(count), degree(count);  // of the neighbours
  std::string lines = "from,to\n";
  const auto name = [](uint32_t number) { return "a" + std::to_string(number); };
  const auto shown = [](const Account& account) {
    return kNeighbourAmount * account.size() + kNeighbourCountry * kCountries[account.country];
  };
  for (const auto& [from, to] : draw_edges(options, count)) {
    lines += name(from) + "," + name(to) + "\n";
    risk[from] += shown(accounts[to]);
    risk[to] += shown(accounts[from]);
    ++degree[from];
    ++degree[to];
  }
  write_file(folder / "edges.csv", lines, existing);
  std::vector<float> positives, negatives, own_positives, own_negatives;
  lines = "account,part,amount,age,country,fraud\n";
  uint64_t test_left = options.rows_test;
  for (uint32_t number = 0; number < count; ++number) {
    const Account& account = accounts[number];
    const double odds = account.own_odds() + (degree[number] > 0 ? risk[number] / degree[number] : 0);
    Rng rng(options.seed, {kStreamSynth, kPart, number});
    const bool fraud = rng.uniform_double() < 1 / (1 + std::exp(-odds));
    // So that exactly rows_test of them are for the test.
    const bool test = rng.uniform_double() * (count - number) < static_cast<double>(test_left);
    if (test) {
      --test_left;
      (fraud ? positives : negatives).push_back(static_cast<float>(odds));
      (fraud ? own_positives : own_negatives).push_back(static_cast<float>(account.own_odds()));
    }
    lines += name(number) + (test ? ",test," : ",train,") + std::to_string(account.amount) + "," +
             std::to_string(account.age) + ",c" + std::to_string(account.country) + (fraud ? ",1\n" : ",0\n");
  }
  write_file(folder / "nodes.csv", lines, existing);
  const AccountTruth truth{
      .fraud_rate = static_cast<double>(positives.size()) / static_cast<double>(options.rows_test),
      .auc = area_under_curve(positives, negatives),
      .log_loss = log_loss(positives, negatives),
      .own_auc = area_under_curve(own_positives, own_negatives)};
  const nlohmann::ordered_json json = {{"seed", options.seed},           {"rows_train", options.rows_train},
                                       {"rows_test", options.rows_test}, {"fraud_rate", truth.fraud_rate},
                                       {"auc", truth.auc},               {"log_loss", truth.log_loss},
                                       {"own_auc", truth.own_auc}};
  write_file(folder / "truth.json", json.dump(2) + "\n", existing);
  return truth;
}

}  // namespace modelet::shard
