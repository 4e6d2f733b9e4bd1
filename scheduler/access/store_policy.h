// StorePolicy: who may do what at the scheduler's port for data. Users offer the data of runs, and agents
// fetch it. Agents offer the files of snapshots, and users fetch those of their own runs. Thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "comm/control/control.h"

namespace modelet::scheduler {

class StorePolicy {
 public:
  // `results` maps the address of each file that a run has made to the key that submitted the run. That key
  // and administrators may fetch the file. Several runs may have made the same file.
  void set_results(std::multimap<std::string, std::string> results);

  // Returns the reason why `sender` may not send this message, or "" if it may. In a pool without keys
  // everybody may do everything.
  std::string why_not(const comm::Identity& sender, const comm::control::ToSchedulerMessage& message) const;

 private:
  bool is_result_of(const std::string& address, const comm::Identity& reader) const;

  mutable std::mutex mutex_;
  std::multimap<std::string, std::string> results_;
};

}  // namespace modelet::scheduler
