// Roots: the folders of this machine that runs may use. The user who submits a run chooses its paths, so a
// run may only read and write beneath roots that the agent's owner has named.
//
// The kernel checks this (openat2(2), Linux 5.6): neither ".." nor a symbolic link leads out of a root.
// Errors name the path and the option that would allow it, but say nothing about what is there.
#pragma once

#include <filesystem>
#include <vector>

#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

struct Roots {
  std::vector<std::filesystem::path> data;      // runs may read files there
  std::vector<std::filesystem::path> out;       // runs may write there, and resume from there
  std::vector<std::filesystem::path> kept_out;  // but not here, unless the agent itself chose the folder
};

// Throws UsageError if a root is not a folder.
void check(const Roots& roots);

// Throws UsageError unless the job's output folder and checkpoint are beneath the roots. The output folder
// must not be a root itself, nor in a folder that is kept out. A private folder (TrainJob::private_folder)
// may be in one: the agent chose it.
void check_folders(const Roots& roots, const TrainJob& job);

// Like check_folders(), and the job's data must be regular files beneath the roots: opening another kind of
// file may block for ever. If the data was fetched (TrainJob::train_file, test_file), it is the agent's
// own, and the data paths of the experiment are not looked at.
void check(const Roots& roots, const TrainJob& job);

}  // namespace modelet::agent
