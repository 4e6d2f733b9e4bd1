// OwnSnapshots: the snapshots that this node has written or brought, and what is still to do for each of
// them: hash its files, send each file to another node, report that, and send what is to be kept to the
// scheduler's store. work() does one unit at a time, so that its caller can do other things in between. One
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/system/clock.h"
#include "base/system/log.h"
#include "comm/content/store.h"
#include "comm/control/control.h"
#include "node_agent/snapshots/bring_files.h"
#include "node_agent/snapshots/holder_links.h"
#include "node_agent/snapshots/snapshot_keeper.h"

namespace modelet::agent {

class OwnSnapshots {
 public:
  // `check` is called several times a second while files are read; it may throw to cut the work short.
  // `let_go`: as in BringOptions.
  struct Surroundings {
    std::string node;
    comm::ContentStore& store;
    comm::ContentStore* local_store;  // as in BringOptions
    HolderLinks& links;
    SnapshotKeeper::Held held;
    std::function<void()> check;
    std::function<void(const std::string& address)> let_go;
    double retry_seconds;
  };
  explicit OwnSnapshots(Surroundings surroundings) : around_(std::move(surroundings)) {}

  // As in SnapshotKeeper.
  void begin(const SnapshotKeeper::Group& group);
  void take(uint64_t step, bool keep, std::filesystem::path folder, std::vector<std::string> files);
  void stable(uint64_t run, uint64_t step);
  void brought(uint64_t run, uint64_t step, bool keep, std::filesystem::path folder,
               std::vector<HeldFile> files);

  bool has_work() const;    // whether there is work now; after a failure it waits for a while
  bool is_sending() const;  // as in SnapshotKeeper
  void work();              // does one unit; throws only what `check` throws
  // The steps of the present run's snapshots that are held.
  const std::set<uint64_t>& held_steps() const { return held_steps_; }

  std::set<comm::ContentId> contents() const;    // of all files
  std::vector<comm::ContentId> take_unneeded();  // files of snapshots that were pruned since the last call

 private:
  struct Snapshot {
    uint64_t run = 0;
    uint32_t epoch = 0, rank = 0;
    uint64_t step = 0;
    bool keep = false;
    std::filesystem::path folder = {};
    std::vector<std::string> names = {};  // of files
    std::vector<HeldFile> files = {};     // the first of `names`, whose content is known already
    bool said = false;                    // reported that they are on this node
    bool told = false;                    // reported that they are held
    bool told_stored = false;             // reported as in the scheduler's store, or left to others
    double retry_at = 0;
    uint64_t failures = 0;
  };
  bool wants_store(const Snapshot& snapshot) const;
  bool is_alone() const;
  bool is_due(const Snapshot& snapshot) const;
  void drop_superseded();
  void advance(Snapshot& snapshot);
  void adopt_next(Snapshot& snapshot);
  void copy(Snapshot& snapshot, size_t file);
  void send(const Snapshot& snapshot, const HeldFile& file, const std::string& to);
  std::vector<std::string> candidates() const;
  void say(const Snapshot& snapshot);
  void tell(Snapshot& snapshot);
  void forget(const Snapshot& snapshot, bool remove_files);

  Surroundings around_;
  SnapshotKeeper::Group group_;
  std::deque<Snapshot> snapshots_;           // the oldest first
  std::map<std::string, double> failed_at_;  // nodes that did not take a file -> when
  std::set<uint64_t> held_steps_;            // of group_.run
  std::set<comm::ContentId> unneeded_;
  SteadyClock clock_;
};

}  // namespace modelet::agent
