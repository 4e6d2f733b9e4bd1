// Planning as a request and its answer. A plan of thousands of modelets takes longer than the scheduler may
// be unresponsive. So Core sends a request, and something else answers it: another thread
// (scheduler/server/planner.h), or in tests the caller at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "scheduler/plan/placement.h"

namespace modelet::scheduler {

struct PlanRequest {
  uint64_t run = 0, number = 0;  // `number` identifies the request
  std::string key;               // whose run it is
  Experiment experiment;
  DataShape shape;
  std::vector<NodeCapacity> nodes;
};

struct Planned {
  uint64_t run = 0, number = 0;  // of the request
  std::optional<Plan> plan;      // empty: it could not be made
  std::string failure;           // the reason
  bool user_error = false;       // the user can correct the reason
};

// Throws nothing.
Planned carry_out(const PlanRequest& request);

}  // namespace modelet::scheduler
