// The owner of the run in a folder. In a pool with keys a run's folder has a file "submitter" with the name
// of the key that submitted the run. No other user can continue that run or write into its folder, not even
// after a restart of the scheduler or through another scheduler. Folders without the file belong to
// everybody: those of pools without keys, of `modelet train`, and of administrators.
#pragma once

#include <filesystem>
#include <string>

namespace modelet::agent {

struct RunOwner {
  std::string submitter;  // name of a key; empty: the pool has no keys
  bool is_admin = false;  // an administrator may continue everybody's runs
};

// Throws UsageError if `path` is in the folder of somebody else's run. `path` need not exist.
void require_own_run(const std::filesystem::path& path, const RunOwner& owner);
// Like require_own_run(), and makes the folder the owner's. Also throws UsageError if the folder holds
// anything but a run: the owner would get it together with the folder.
void claim_run_folder(const std::filesystem::path& folder, const RunOwner& owner);

}  // namespace modelet::agent
