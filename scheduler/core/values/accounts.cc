#include "scheduler/core/values/accounts.h"

namespace modelet::scheduler {
namespace {

void change_one(Holding& holding, const Holding& before, const Holding& after) {
  for (uint64_t Holding::*each : {&Holding::runs, &Holding::bytes, &Holding::addresses, &Holding::watches})
    holding.*each += after.*each - before.*each;
}

}  // namespace

void Accounts::change(const std::string& key, const Holding& before, const Holding& after) {
  if (before == after) return;
  Holding& holding = of_key_[key];
  change_one(holding, before, after);
  if (holding == Holding{}) of_key_.erase(key);
  change_one(all_, before, after);
}

Holding Accounts::of(const std::string& key) const {
  const auto found = of_key_.find(key);
  return found == of_key_.end() ? Holding{} : found->second;
}

}  // namespace modelet::scheduler
