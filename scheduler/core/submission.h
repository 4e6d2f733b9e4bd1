// The checks of a submission that need no pool: names, sizes, addresses. Pure functions.
#pragma once

#include <cstdint>

#include "base/experiment/experiment.h"
#include "comm/control/control.h"

namespace modelet::scheduler {

// Limit for one run. Planning this many takes seconds, and each is a file of a checkpoint.
inline constexpr uint64_t kMostModelets = 16384;

struct Submission {
  Experiment experiment;
  DataShape shape;
};

// Throws UsageError if nobody could run it. `data_port`: that of the scheduler's store; 0: it has none.
Submission checked_submission(const comm::control::SubmitT& message, uint16_t data_port);

}  // namespace modelet::scheduler
