// LearningLedger: what runs have learned from the private data of this machine, kept in a file. A round is written down
// before anything of it is sent, so neither a kill nor a crash of the machine forgets one. Samples and runs may be a few
// seconds old.
//
// Any thread may call everything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "node_agent/owner/beat.h"
#include "node_agent/owner/data_use.h"
#include "node_agent/owner/preferences.h"

namespace modelet::agent {

class LearningLedger {
 public:
  // `names` of data that the agent has now. Throws Error if the file cannot be read.
  LearningLedger(std::filesystem::path file, const std::vector<std::string>& names);
  LearningLedger(const LearningLedger&) = delete;
  LearningLedger& operator=(const LearningLedger&) = delete;
  ~LearningLedger() { store(); }

  // A round is about to learn from the data of this name, with this much noise (cluster.noise). Returns when that is on the
  // disk; otherwise throws Error, and the round must not take place.
  void charge(const std::string& name, double noise);
  // Runs, groups and samples. They are written with the next round, or by store().
  void count(const Beat& beat);
  // Writes what has changed. If it cannot, it says so in the log, and returns false.
  bool store();

  DataUse use_of(const std::string& name) const;  // by all runs
  nlohmann::json status(const Learning& rules) const;

 private:
  void restore();

  const std::filesystem::path file_;
  std::mutex writes_;  // for the order of writes; locked before mutex_
  mutable std::mutex mutex_;
  std::map<std::string, DataUse> learned_;  // by name
  uint64_t last_run_ = 0;                   // a run that is grouped anew is the same run
  bool is_stored_ = true;
};

}  // namespace modelet::agent
