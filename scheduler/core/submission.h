// Checks a submission as far as that is possible without a pool: names, sizes, addresses. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "comm/content/snapshot.h"
#include "comm/control/control.h"
#include "scheduler/core/values/snapshots.h"

namespace modelet::scheduler {

// The limit for one run. Planning so many modelets takes seconds.
inline constexpr uint64_t kMostModelets = (comm::kMostSnapshotFiles - most_snapshot_files(0)) / 2;

struct Submission {
  Experiment experiment;
  DataShape shape;
  std::string resume_snapshot;            // what the run continues from, as it is kept and sent to agents
  std::vector<std::string> resume_files;  // the addresses of its files in the store
};

// Throws UsageError if no pool could execute the run. `data_port` is the port of the scheduler's store; 0: it
// has none.
Submission checked_submission(const comm::control::SubmitT& message, uint16_t data_port);

}  // namespace modelet::scheduler
