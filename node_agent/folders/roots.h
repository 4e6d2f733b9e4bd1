// Roots: the folders of this machine that runs may use. The user who submits a run chooses its paths, so
// nothing is read or written that is not beneath a root named by the agent's owner.
//
// The kernel checks it (openat2(2), Linux 5.6): neither ".." nor a symbolic link leads out of a root. Errors
// name the path and the option that would allow it, and say nothing of what is there.
#pragma once

#include <filesystem>
#include <vector>

#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

struct Roots {
  std::vector<std::filesystem::path> data;      // runs may read files there
  std::vector<std::filesystem::path> out;       // runs may write there, and resume from there
  std::vector<std::filesystem::path> kept_out;  // but not here: what the agent keeps
};

// Throws UsageError if a root is not a folder.
void check(const Roots& roots);

// Throws UsageError unless output and checkpoint of a job are beneath the roots, and the output is no root itself.
void check_folders(const Roots& roots, const TrainJob& job);

// The same, and the data of the job must be regular files beneath the roots: opening others may wait for ever. Data
// that was fetched (TrainJob::train_file, test_file) is the agent's own; what the experiment calls its data is not
// looked at then.
void check(const Roots& roots, const TrainJob& job);

}  // namespace modelet::agent
