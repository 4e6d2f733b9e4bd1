// Invariants: those of core.h, as a check of the pool between two events. A broken one is a bug, after which no
// decision can be trusted. Core therefore checks before it lets anything out that follows from an event: what is
// written down and sent never comes from a broken state. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "scheduler/core/run/pool.h"

namespace modelet::scheduler {

class Invariants {
 public:
  // Begins with the runs that a former scheduler has left.
  void begin(const Pool& restored);
  // What is wrong with the pool, also compared with its state at the last call; empty: nothing. Pool::actions
  // must have what follows from the events since then.
  std::string broken_by(const Pool& pool);

 private:
  // A run when it was last seen.
  struct Seen {
    uint32_t epoch = 0;
    std::pair<uint32_t, uint32_t> prepared;  // epoch and rank of its last Prepare
    bool ended = false;
    uint64_t step = 0;
    std::string detail;
    comm::control::RunState state = comm::control::RunState::Queued;
    std::vector<uint64_t> results;  // of its tasks
  };

  std::string broken_by_actions(const Pool& pool);
  std::string broken_by_run(const Pool& pool, const Run& run);
  std::string broken_by_tasks(const Pool& pool);

  std::map<uint64_t, Seen> seen_;
};

}  // namespace modelet::scheduler
