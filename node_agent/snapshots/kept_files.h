// Which files of snapshots this node keeps, and which it may remove. It decides only: the driver removes the
// files. SnapshotService drives it with a store, the histories of tests/simulation without.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/content/content.h"

namespace modelet::agent {

// What this node holds for other nodes of the run for which it works. Plain state, without locks.
class HeldFiles {
 public:
  // `run_bytes`: limit of the files of one run.
  explicit HeldFiles(uint64_t run_bytes) : run_bytes_(run_bytes) {}

  // This node now works for a run. What is held of another one is forgotten here.
  void begin(uint64_t pool, uint64_t run);
  // `node` offers a file of a snapshot of `run` after `step`. Returns why it is refused; empty: it counts as
  // held from now on.
  std::string offer(uint64_t run, uint64_t step, const comm::ContentId& content, uint64_t bytes,
                    const std::string& node);
  // Forgets the files of the run's snapshots before `step`, and returns them.
  std::vector<comm::ContentId> forget_before(uint64_t run, uint64_t step);

  std::map<comm::ContentId, std::string> nodes() const;  // the node that offered each file

 private:
  struct Held {
    uint64_t step = 0, bytes = 0;  // step: of the newest snapshot that has the file
    std::string node;
  };

  uint64_t run_bytes_;
  uint64_t pool_ = 0, run_ = 0;
  std::map<comm::ContentId, Held> held_;
};

// Which files go: those that nobody needs any more, once nobody has them open. Files of other runs stay until
// the store needs their room, because such a run may go on without this node. Plain state, without locks.
class Removals {
 public:
  // `found`: what the store had when the process began.
  explicit Removals(std::set<comm::ContentId> found) : of_others_(std::move(found)) {}

  // This node now works for another run than the one to which these files belong, its own and those it held.
  void leave_to_others(const std::set<comm::ContentId>& own,
                       const std::map<comm::ContentId, std::string>& held);
  // The present run needs these files, which may be those of others as well.
  void take_back(const comm::ContentId& file) { of_others_.erase(file); }
  // A snapshot with this file is not needed any more.
  void forget(const comm::ContentId& file) { forgotten_.insert(file); }

  // Calls `remove` for each forgotten file that this node neither needs for its own snapshots nor holds. If
  // `remove` returns false, because somebody has the file open, it is called again next time. A file that is
  // still needed is no longer forgotten.
  void carry_out(const std::set<comm::ContentId>& own, const std::map<comm::ContentId, std::string>& held,
                 const std::function<bool(const comm::ContentId& file)>& remove);

 private:
  std::set<comm::ContentId> of_others_, forgotten_;
};

}  // namespace modelet::agent
