// The search for a placement: longest processing time first (Graham 1969), then moves and swaps as long as
// they help. Modelets of a layer with the same size cost the same, and a layer has about two sizes. The
// search compares sizes instead of modelets, so its time grows with modelets x nodes and not with the square
// of the number of modelets. Pure: the same problem gives the same placement.
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
  std::span<const StepWork> batch_work;  // [layer], the same on every node
  std::span<const NodeCapacity> nodes;   // not empty
  uint64_t fixed_bytes = 0;              // that each node needs in any case
};

struct Placement {
  std::vector<uint32_t> owner;  // [partition] -> node
  uint64_t tried = 0;           // how many moves and swaps were examined
};

// Throws Error that names the missing memory if the model does not fit.
Placement find_placement(const PlacementProblem& problem);

}  // namespace modelet::scheduler
