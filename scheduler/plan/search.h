// The search for a placement: longest processing time first (Graham 1969), then moves and swaps while they
// help. Modelets of a layer that have the same size cost the same, and a layer has about two sizes: the
// search compares sizes, not modelets, so its time grows with modelets x nodes, and not with the square of
// the modelets. Pure; the same problem gives the same placement.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/experiment/partition.h"
#include "scheduler/plan/cost_model.h"

namespace modelet::scheduler {

struct PlacementProblem {
  std::span<const ModeletSpec> partition;
  std::span<const ModeletCost> costs;    // [partition]
  std::span<const StepWork> batch_work;  // [layer], of every node
  std::span<const NodeCapacity> nodes;   // not empty
  uint64_t fixed_bytes = 0;              // of each node, whatever it holds
};

struct Placement {
  std::vector<uint32_t> owner;  // [partition] -> node
  uint64_t tried = 0;           // moves and swaps that were looked at
};

// Throws Error if the model does not fit, with the missing memory.
Placement find_placement(const PlacementProblem& problem);

}  // namespace modelet::scheduler
