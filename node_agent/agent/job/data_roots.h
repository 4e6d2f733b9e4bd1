// DataRoots: the folders of this machine whose files runs may read. The user who submits a run names the
// files of its data, so an agent opens them only beneath folders that its owner has named.
//
// The kernel checks this (openat2(2), Linux 5.6): neither ".." nor a symbolic link leads out of a root.
// Filters of system calls often forbid openat2 (systemd's RestrictSUIDSGID=, which cannot look into its arguments;
// old profiles of containers): then no file could be opened, so this is found out before the agent joins a pool.
// Errors name the path and the option that would allow it, but say nothing about what is there. Immutable.
#pragma once

#include <filesystem>
#include <vector>

#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

class DataRoots {
 public:
  // Throws UsageError if one is not a folder, or if this process may not call openat2.
  explicit DataRoots(std::vector<std::filesystem::path> folders);

  // Throws UsageError unless the job's data are regular files beneath the roots: opening another kind of
  // file may block for ever. If the data was fetched (TrainJob::train_file, test_file), it is the agent's
  // own, and the data paths of the experiment are not looked at.
  void check(const TrainJob& job) const;

 private:
  void check_file(const char* key, const std::filesystem::path& path) const;

  std::vector<std::filesystem::path> folders_;
};

}  // namespace modelet::agent
