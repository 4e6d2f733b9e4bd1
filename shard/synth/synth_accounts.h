// A synthetic graph of accounts, some of them fraudulent, whose true probabilities of fraud are known, and so the best AUC
// that any model can reach. The log-odds of an account follow from what its row shows and, mostly, from what the rows of
// its neighbours show, so a model that looks at an account alone cannot be good.
//
//   nodes.csv    account, part (train or test), amount, age, country, fraud (0 or 1)
//   edges.csv    from, to; an edge has no direction
//   truth.json   the figures below
#pragma once

#include <cstdint>
#include <filesystem>

#include "shard/synth/synth.h"

namespace modelet::shard {

struct AccountOptions {
  uint64_t rows_train = 20'000, rows_test = 10'000;  // accounts
  uint64_t seed = 1;
};

// The true figures of the accounts of the part `test`.
struct AccountTruth {
  double fraud_rate = 0;
  double auc = 0, log_loss = 0;  // of the true probabilities: the ceiling, the floor
  double own_auc = 0;            // of the share of the log-odds that follows from the account's own row
};

// Writes the files to `folder`, which is created if needed. Throws UsageError for options out of range.
AccountTruth write_accounts(const AccountOptions& options, const std::filesystem::path& folder,
                            Existing existing = Existing::kReplace);

}  // namespace modelet::shard
