// Checks a submission as far as that is possible without a pool: names, sizes, addresses. Pure functions.
#pragma once

#include <cstdint>

#include "base/experiment/experiment.h"
#include "comm/content/snapshot.h"
#include "comm/control/control.h"
#include "scheduler/core/run/run.h"
#include "scheduler/core/values/snapshots.h"

namespace modelet::scheduler {

// The limit for one run. Planning so many modelets takes seconds.
inline constexpr uint64_t kMostModelets = (comm::kMostSnapshotFiles - most_snapshot_files(0)) / 2;

// Throws UsageError if no pool could execute the run. `data_port` is the port of the scheduler's store; 0: it
// has none.
Submission checked_submission(const comm::control::SubmitT& message, uint16_t data_port);

}  // namespace modelet::scheduler
