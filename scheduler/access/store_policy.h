// StorePolicy: who may do what at the scheduler's port for data. Users offer the data of runs, and agents
// fetch that of the runs for which they work. Agents offer the files of snapshots, and users fetch those of
// their own runs. To know an address is no right. Thread-safe.
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

  // `files` maps each address that the present run of an agent names to the agent's key.
  void set_files_of_agents(std::multimap<std::string, std::string> files);
  // Sets whether runs have made files that set_results() does not know yet, though their users may know of
  // them.
  void set_lags(bool lags);
  // Whether an agent asks for a file that its present run does not name, or a user, while this object lags,
  // for one that is not known as his. They may be told of a run or a file before this object is, and should
  // ask again. A user who may not have it is refused (why_not) as soon as it does not lag.
  bool is_early(const comm::Identity& sender, const comm::control::ToSchedulerMessage& message) const;

  // Returns the reason why `sender` may not send this message, or "" if it may. In a pool without keys
  // everybody may do everything.
  std::string why_not(const comm::Identity& sender, const comm::control::ToSchedulerMessage& message) const;

 private:
  bool is_result_of(const std::string& address, const comm::Identity& reader) const;

  mutable std::mutex mutex_;
  std::multimap<std::string, std::string> results_, files_of_agents_;
  bool lags_ = false;
};

}  // namespace modelet::scheduler
