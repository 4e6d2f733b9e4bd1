#include "node_agent/owner/private_data.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text/printable.h"
#include "node_agent/owner/privacy_loss.h"

namespace modelet::agent {

PrivateData::PrivateData(const std::vector<std::string>& given, Learning rules) : rules_(std::move(rules)) {
  for (const std::string& each : given) {
    const size_t equals = each.find('=');
    const std::string name = each.substr(0, equals);
    if (equals == std::string::npos || !is_private_name(name))
      throw UsageError("--private " + printable(each, 256) +
                       ": write NAME=PATH, with a name of at most 64 letters, digits, '-' and '_'");
    const std::filesystem::path file = std::filesystem::absolute(each.substr(equals + 1));
    if (!std::filesystem::is_regular_file(file)) throw UsageError("--private " + printable(each, 256) + ": there is no such file");
    if (!files_.emplace(name, file).second)
      throw UsageError("--private: the name '" + name + "' stands for two files; give each a name of its own");
  }
}

std::vector<std::string> PrivateData::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : files_) names.push_back(name);
  return names;
}

std::filesystem::path PrivateData::file_for(const Experiment& experiment, const std::string& learner,
                                            const Rounds& rounds) const {
  const std::string name = private_name(experiment);
  const auto found = files_.find(name);
  if (found == files_.end()) throw UsageError(fmt::format("this node has no private data '{}'", name));
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("the owner of this node's private data '{}' does not let this run learn from it: {}",
                                 name, why));
  };
  if (!rules_.submitters.empty() && std::ranges::find(rules_.submitters, learner) == rules_.submitters.end())
    refuse(learner.empty() ? "it is for some users only, and this pool has no keys"
                           : fmt::format("it is not for the user '{}'", printable(learner, 64)));
  const Experiment::Cluster& cluster = experiment.cluster;
  if (cluster.privacy == Privacy::kRows && !rules_.rows)
    refuse("cluster.privacy must be sums");
  if (cluster.privacy == Privacy::kRows && !rules_.owners.empty())
    refuse("it names the agents with which it sums, who prove who they are only with cluster.privacy = sums");
  // Also of the smallest sum to which the run may come, so that it is refused before it has learned anything.
  std::pair<std::string, uint32_t> fewest = {"replicas", cluster.replicas};
  for (const auto& [key, count] : {std::pair("least_owners", cluster.least_owners), {"owners_per_round", cluster.owners_per_round}})
    if (count > 0 && count < fewest.second) fewest = {key, count};
  if (fewest.second < rules_.least_owners)
    refuse(fmt::format("a sum must be of at least {} owners, and cluster.{} is {}", rules_.least_owners, fewest.first,
                       fewest.second));
  const DataUse before = use_of(experiment);
  if (rules_.most_rounds > 0) {
    const uint64_t allowed = rules_.most_rounds - std::min(before.rounds, rules_.most_rounds);
    if (rounds(allowed) > allowed)
      refuse(fmt::format("it would learn in more rounds than are left: {} of {}", allowed, rules_.most_rounds));
  }
  if (rules_.budget > 0) require_budget(cluster.noise, before, rounds, refuse);
  return found->second;
}

DataUse PrivateData::use_of(const Experiment& experiment) const {
  return ledger_ == nullptr ? DataUse{} : ledger_->use_of(private_name(experiment));
}

void PrivateData::charge(const Experiment& experiment) const {
  if (ledger_ != nullptr) ledger_->charge(private_name(experiment), experiment.cluster.noise);
}

// A stop may cost one round more than was planned.
template <class Refuse>
void PrivateData::require_budget(double noise, const DataUse& before, const Rounds& rounds, const Refuse& refuse) const {
  constexpr uint64_t kMostRounds = 1'000'000'000;
  if (noise == 0) refuse(fmt::format("it has a privacy budget, epsilon {}, so cluster.noise must be above 0", rules_.budget));
  const auto epsilon_after = [&](uint64_t more) {
    return epsilon_of(before.loss + privacy_loss(more, noise), rules_.delta);
  };
  uint64_t low = 0, high = kMostRounds;  // the most rounds that are allowed are between these
  while (low < high) {
    const uint64_t middle = (low + high + 1) / 2;
    if (epsilon_after(middle) <= rules_.budget)
      low = middle;
    else
      high = middle - 1;
  }
  if (rounds(low) + 1 > low)
    refuse(fmt::format("of its privacy budget, epsilon {} at delta {}, {:.3g} is spent, and what is left is enough for {} "
                       "rounds with this cluster.noise, of which one is kept for a stop: set more noise, fewer epochs or a "
                       "larger exchange.local_steps",
                       rules_.budget, rules_.delta, epsilon_of(before.loss, rules_.delta), low));
}

}  // namespace modelet::agent
