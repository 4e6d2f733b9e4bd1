// Snapshots: which nodes hold which files of a run. After a step, each rank reports the files that it has
// written and which nodes hold them. A snapshot is stable once all ranks have reported and each file has
// enough holders: the run can then continue from it after the loss of any one node. Older snapshots are then
// forgotten, except those that the user wants (`keep`).
//
// Pure. What is added here comes from agents, and may be anything that comm::check() accepts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/content/snapshot.h"

namespace modelet::scheduler {

// Each modelet is a file of a snapshot, two with the best weights so far; a few other files come on top.
constexpr uint64_t most_snapshot_files(uint64_t modelets) { return 2 * modelets + 16; }

class Snapshots {
 public:
  // Whether this holder can be asked for files now.
  using IsThere = std::function<bool(const std::string& holder)>;

  Snapshots() = default;
  // A snapshot that is not stable yet.
  struct Unfinished {
    comm::Snapshot snapshot;
    std::set<uint32_t> ranks;  // that have reported
    uint32_t size = 0;         // of the group
  };
  // What a run continues from, which was written before it: stable, in the scheduler's store, and of no group of the run.
  explicit Snapshots(comm::Snapshot start);
  // What a former scheduler knew: the stable snapshots, and unfinished ones that are to be kept. Both are in
  // the order of steps.
  Snapshots(std::vector<comm::Snapshot> stable, std::vector<Unfinished> unfinished)
      : stable_(std::move(stable)), unfinished_(std::move(unfinished)) {}

  // Adds what rank `rank` of the `size` ranks of the group of `epoch` has written. `files` may name more
  // holders each time. Returns false if `files` contradicts what is known, does not belong to this group, or would
  // make the snapshot have more than `most_files` files.
  bool add(uint32_t epoch, uint32_t size, uint32_t rank, const comm::Snapshot& files,
           size_t most_files = comm::kMostSnapshotFiles);
  // Adds holders of a snapshot that all ranks have reported: a node has got its files, whatever group it works
  // for. Returns false if there is no such snapshot, if the contents differ, or if all was known.
  bool add_holders(const comm::Snapshot& files);
  // Finds the snapshots that have become stable: all ranks have reported, and each file has at least
  // `holders` holders that are there. Returns the newest stable step and forgets the snapshots that this
  // makes superfluous. Returns nothing if no snapshot has become stable.
  std::optional<uint64_t> advance_stable(uint32_t holders, const IsThere& is_there);
  // The group has ended, and the next one begins from `step`. A snapshot of this step that all ranks have
  // reported can still become stable. All other unfinished snapshots are dropped: missing reports will never
  // come, and later steps are computed again.
  void go_back_to(uint64_t step);

  // The node is gone. When it comes back it may have lost its disk, so no unfinished snapshot counts on its
  // files until it reports them again. Stable snapshots have other holders. Returns false if nothing changed.
  bool holder_gone(const std::string& holder);
  // For a group that could not continue from a snapshot that all ranks had reported.
  void drop_unfinished() { unfinished_.clear(); }

  const std::vector<comm::Snapshot>& stable() const { return stable_; }  // in the order of steps
  const std::vector<Unfinished>& unfinished() const { return unfinished_; }
  // The newest stable one; null if there is none yet.
  const comm::Snapshot* newest() const { return stable_.empty() ? nullptr : &stable_.back(); }
  // Whether one of the stable ones was written by the run itself.
  bool has_own() const { return !stable_.empty() && stable_.back().epoch != kBeforeRun; }
  // How many files of what the run continues from are still kept.
  size_t files_of_start() const;
  void forget_start();
  uint64_t stable_step() const { return stable_.empty() ? 0 : stable_.back().step; }
  // The newest stable snapshot whose files can all be fetched now; null if there is none.
  const comm::Snapshot* newest_at_hand(const IsThere& is_there) const;
  // The newest snapshot after the stable ones that all ranks have reported and whose files can all be fetched
  // now, although it is not stable. A group may continue from it as long as the stable one is kept. Null if
  // there is none.
  const comm::Snapshot* newest_complete(const IsThere& is_there) const;
  // A file of the newest stable snapshot that no node that is there holds, and a node that holds it. Nothing if
  // there is no such file with a known holder.
  struct Missing {
    std::string file, holder;
  };
  std::optional<Missing> missing(const IsThere& is_there) const;
  // Whether this holder has all files of the newest stable snapshot.
  bool newest_lies_with(const std::string& holder) const;

  static constexpr size_t kMostKept = 16;

 private:
  static constexpr uint32_t kBeforeRun = 0;  // groups count from 1

  comm::Snapshot* complete_of(uint64_t step);  // stable, or reported by all ranks; null: there is none
  void forget_old();

  std::vector<comm::Snapshot> stable_;
  std::vector<Unfinished> unfinished_;  // in the order of steps; all of one epoch
};

}  // namespace modelet::scheduler
