// The owner of the run in a folder. In a pool with keys a run's folder names the key that submitted it, in a
// file "submitter": no other user can continue that run or write into its folder, not even after the
// scheduler was restarted or through another scheduler. Folders without the file (of pools without keys, of
// `modelet train`, of administrators) belong to everybody.
#pragma once

#include <filesystem>
#include <string>

namespace modelet::agent {

struct RunOwner {
  std::string submitter;  // name of a key; empty: the pool has no keys
  bool is_admin = false;  // who may continue everybody's runs
};

// Throws UsageError if `path`, which need not exist, is in the folder of somebody else's run.
void require_own_run(const std::filesystem::path& path, const RunOwner& owner);
// The same, and makes the folder the owner's. Throws UsageError, too, if the folder holds other things than a run:
// with it the owner would take them.
void claim_run_folder(const std::filesystem::path& folder, const RunOwner& owner);

}  // namespace modelet::agent
