// SnapshotSender: does the tasks of OwnSnapshots: puts files into this node's store, sends them to other nodes
// and to the scheduler's store, and removes what is not needed any more. One thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/system/clock.h"
#include "comm/content/store.h"
#include "node_agent/snapshots/holder_links.h"
#include "node_agent/snapshots/own_snapshots.h"

namespace modelet::agent {

class SnapshotSender {
 public:
  // `check` is called several times a second while files are read; it may throw to cut the work short.
  // `let_go` and `local_store`: as in BringOptions.
  struct Surroundings {
    comm::ContentStore& store;
    comm::ContentStore* local_store;
    HolderLinks& links;
    std::function<void()> check;
    std::function<void(const std::string& address)> let_go;
  };
  SnapshotSender(OwnSnapshots& own, Surroundings surroundings)
      : own_(own), around_(std::move(surroundings)) {}

  bool has_work() const { return own_.has_work(clock_.now()); }
  std::optional<OwnSnapshots::Task> next() { return own_.next(clock_.now()); }
  // Does the task. Throws only what `check` throws; next() then returns it again, unless it is a Repair.
  void work(const OwnSnapshots::Task& task);
  // Removes the files of a forgotten snapshot, except those in this node's own store.
  void remove(const OwnSnapshots::Forgotten& snapshot);

 private:
  void carry_out(const OwnSnapshots::Adopt& task);
  void carry_out(const OwnSnapshots::Send& task);
  void carry_out(const OwnSnapshots::Repair& task);

  OwnSnapshots& own_;
  Surroundings around_;
  SteadyClock clock_;
};

}  // namespace modelet::agent
