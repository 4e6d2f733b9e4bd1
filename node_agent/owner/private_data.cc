#include "node_agent/owner/private_data.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text/printable.h"

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
                                            uint64_t step) const {
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
  // Also of the smallest sum to which the run may come, so that it is refused before it has learned anything.
  const bool may_shrink = cluster.least_owners > 0 && cluster.least_owners < cluster.replicas;
  const uint32_t fewest = may_shrink ? cluster.least_owners : cluster.replicas;
  if (fewest < rules_.least_owners)
    refuse(fmt::format("a sum must be of at least {} owners, and cluster.{} is {}", rules_.least_owners,
                       may_shrink ? "least_owners" : "replicas", fewest));
  if (rules_.most_rounds == 0) return found->second;
  const uint64_t steps = uint64_t{experiment.train.epochs} * cluster.epoch_steps, left = steps - std::min(step, steps);
  const uint64_t rounds = (left + experiment.exchange.local_steps - 1) / experiment.exchange.local_steps;
  const uint64_t learned = rounds_(name), allowed = rules_.most_rounds - std::min(learned, rules_.most_rounds);
  if (rounds > allowed)
    refuse(fmt::format("it would learn in {} rounds, and of {} in all {} are left", rounds, rules_.most_rounds, allowed));
  return found->second;
}

}  // namespace modelet::agent
