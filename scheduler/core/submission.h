// Checks a submission as far as that is possible without a pool: names, sizes, addresses. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "comm/content/snapshot.h"
#include "comm/control/control.h"

namespace modelet::scheduler {

// The limit for one run. Planning so many modelets takes seconds, and each is a file of a snapshot, two with
// the best weights so far; a few other files come on top.
inline constexpr uint64_t kMostModelets = comm::kMostSnapshotFiles / 2 - 8;

struct Submission {
  Experiment experiment;
  DataShape shape;
  std::vector<std::string> resume_files;  // addresses in the store of what the run continues from
};

// Throws UsageError if no pool could execute the run. `data_port` is the port of the scheduler's store; 0: it
// has none.
Submission checked_submission(const comm::control::SubmitT& message, uint16_t data_port);

}  // namespace modelet::scheduler
