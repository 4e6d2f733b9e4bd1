// PrivateData: the data of this machine that runs may learn from without seeing it (docs/privacy.md), and the rules of its
// owner for them. Each has a name, which the pool knows. Where it lies, the pool never knows.
//
// Immutable; any thread may use it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/experiment/experiment.h"
#include "node_agent/owner/preferences.h"

namespace modelet::agent {

class PrivateData {
 public:
  PrivateData() = default;  // none
  // `given`: "NAME=PATH" each. Throws UsageError for a name that cannot be one or comes twice, or a path that is no file.
  PrivateData(const std::vector<std::string>& given, Learning rules);

  std::vector<std::string> names() const;
  // The file of the experiment's private data, for a run that goes on from `step`. Throws UsageError if there is none of
  // this name here, or if its owner does not let this run learn from it: one that the key `learner` submitted (empty: the
  // pool has no keys).
  std::filesystem::path file_for(const Experiment& experiment, const std::string& learner, uint64_t step = 0) const;

  // Says how many rounds all runs have learned from the data of a name. Without it, none have.
  void count_rounds_with(std::function<uint64_t(const std::string& name)> rounds) { rounds_ = std::move(rounds); }

 private:
  std::map<std::string, std::filesystem::path> files_;
  Learning rules_;
  std::function<uint64_t(const std::string& name)> rounds_ = [](const std::string&) { return 0; };
};

}  // namespace modelet::agent
