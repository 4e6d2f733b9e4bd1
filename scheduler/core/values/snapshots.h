// Snapshots: which files of a run lie where. Each rank reports the files that it has written after a step and
// who holds them; once all ranks have, and each file has enough holders, the snapshot is stable: the run can
// go on from it whichever one node is lost. Older ones are then forgotten, but for those that the user wants
// (`keep`). Pure; what is added here comes from agents and may be anything that parse_snapshot() lets through.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/content/snapshot.h"

namespace modelet::scheduler {

class Snapshots {
 public:
  using IsThere = std::function<bool(const std::string& holder)>;  // whether that node can be asked now

  Snapshots() = default;
  // Of which some ranks have reported.
  struct Unfinished {
    comm::Snapshot snapshot;
    std::set<uint32_t> ranks;  // that have reported
    uint32_t size = 0;
  };
  // What a former scheduler knew: stable ones, and others that are to be kept; in the order of steps.
  Snapshots(std::vector<comm::Snapshot> stable, std::vector<Unfinished> unfinished)
      : stable_(std::move(stable)), unfinished_(std::move(unfinished)) {}

  // What one rank of `size` of the group of `epoch` has written; `files` may name more holders each time.
  // False if that contradicts what is known, or does not belong to this group.
  bool add(uint32_t epoch, uint32_t size, uint32_t rank, const comm::Snapshot& files);
  // More holders of a stable one: a node has fetched its files. False if there is no such snapshot.
  bool add_holders(const comm::Snapshot& files);
  // Finds what has become stable: files of all ranks, each with `holders` holders that are there. Returns the
  // newest stable step, and forgets what it makes superfluous; nothing if none has become so.
  std::optional<uint64_t> settle(uint32_t holders, const IsThere& is_there);
  // The group is no more, and another begins from this step: what some rank has not reported never will be
  // complete, and what came later comes again. A snapshot of this step that all have reported can become stable.
  void go_back_to(uint64_t step);

  // This node is not there any more. When it is back, perhaps without its disk, it may have lost what it had: no
  // unfinished snapshot counts on it until it says again what it holds. Of stable ones there are other holders.
  // False if nothing changed.
  bool holder_gone(const std::string& holder);
  // A group could not go on from one that all ranks had reported.
  void drop_unfinished() { unfinished_.clear(); }

  const std::vector<comm::Snapshot>& stable() const { return stable_; }  // in the order of steps
  const std::vector<Unfinished>& unfinished() const { return unfinished_; }
  // Null if there is none yet.
  const comm::Snapshot* newest() const { return stable_.empty() ? nullptr : &stable_.back(); }
  uint64_t stable_step() const { return stable_.empty() ? 0 : stable_.back().step; }
  // The newest of which each file can be had now; null if there is none.
  const comm::Snapshot* newest_at_hand(const IsThere& is_there) const;
  // The newest that all ranks have reported and of which each file can be had now, whether it is stable or not:
  // a group may go on from it, as long as the stable one stays. Null if there is none after the stable ones.
  const comm::Snapshot* newest_complete(const IsThere& is_there) const;
  // A node that has a file of the newest one which nobody who is there has; empty if there is no such node.
  std::string missing_holder(const IsThere& is_there) const;
  // Whether all files of the newest one lie with this holder.
  bool newest_lies_with(const std::string& holder) const;

  static constexpr size_t kMostKept = 16;

 private:
  void forget_old();

  std::vector<comm::Snapshot> stable_;
  std::vector<Unfinished> unfinished_;  // in the order of steps; all of one epoch
};

}  // namespace modelet::scheduler
