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
#include "node_agent/owner/learning_ledger.h"
#include "node_agent/owner/preferences.h"

namespace modelet::agent {

class PrivateData {
 public:
  PrivateData() = default;  // none
  // `given`: "NAME=PATH" each. Throws UsageError for a name that cannot be one or comes twice, or a path that is no file.
  PrivateData(const std::vector<std::string>& given, Learning rules);

  std::vector<std::string> names() const;
  // In how many rounds a run has yet to learn; no further than `most` + 1.
  using Rounds = std::function<uint64_t(uint64_t most)>;
  // The file of the experiment's private data. Throws UsageError if there is none of this name here, or if its owner does
  // not let this run learn from it: one that the key `learner` submitted (empty: the pool has no keys).
  std::filesystem::path file_for(const Experiment& experiment, const std::string& learner, const Rounds& rounds) const;

  // The public keys of the agents with which this one may sum; empty: any.
  const std::vector<std::string>& known_owners() const { return rules_.owners; }

  // Counts what runs learn; it must outlive this object. Without it, nothing is counted.
  void count_in(LearningLedger& ledger) { ledger_ = &ledger; }
  DataUse use_of(const Experiment& experiment) const;
  // Before a round of a run, as LearningLedger::charge.
  void charge(const Experiment& experiment) const;

 private:
  template <class Refuse>
  void require_budget(double noise, const DataUse& before, const Rounds& rounds, const Refuse& refuse) const;

  std::map<std::string, std::filesystem::path> files_;
  Learning rules_;
  LearningLedger* ledger_ = nullptr;
};

}  // namespace modelet::agent
