// Placement: which node holds which modelet. A cost model predicts, from the experiment and the data's shape,
// the memory and the work of each modelet and the bytes of each exchange; the placement minimises the time of
// the slowest node within the memory of each. Pure functions: the same arguments give the same plan.
//
// Model of a step. The nodes work layer by layer and meet after each, so a step takes
//     sum over layers of (max over nodes of the time of the node's modelets of that layer),
// a modelet taking max(flops / gflops, bytes / memory_gbps) on a node (roofline; Williams, Waterman,
// Patterson 2009). Which nodes hold what never changes what is learned, so a wrong prediction costs time
// only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/cut.h"
#include "base/experiment.h"

namespace modelet::scheduler {

struct NodeCapacity {
  std::string name;
  uint32_t cores = 1;
  uint64_t memory_bytes = 0;  // that a run may use
  double gflops = 0;          // of all cores together
  double memory_gbps = 0;     // of all cores together; GB/s
};

// Predicted cost of one modelet.
struct ModeletCost {
  uint64_t memory_bytes = 0;  // parameters, optimiser state, tables; its part of the active neurons' buffers
  double flops = 0;           // per step, forward and backward
  double traffic_bytes = 0;   // per step, to and from memory
};

struct NodePlan {
  std::string name;
  std::vector<uint32_t> modelets;  // ids, ascending
  uint64_t memory_bytes = 0;       // modelets + buffers of a step + the program
  uint64_t memory_limit = 0;
  double seconds_per_step = 0;       // computing
  uint64_t bytes_sent_per_step = 0;  // with envelopes, before LZ4
};

struct Plan {
  std::vector<ModeletSpec> cut;
  std::vector<uint32_t> owner;  // [cut] -> index in nodes
  std::vector<NodePlan> nodes;  // in the order given
  uint64_t parameters = 0;
  double seconds_per_step = 0;  // computing, slowest node of each layer
  uint64_t dense_allreduce_bytes =
      0;  // what a node would send a step in a ring all-reduce of all gradients, fp32
};

ModeletCost predict_cost(const ModeletSpec& modelet, const Experiment& experiment, const DataShape& shape);

// Throws Error if the model does not fit, with the missing memory, and UsageError if a message between the
// nodes would hold more matrices than the wire format allows. `nodes` must not be empty. With more nodes than
// modelets some get none.
Plan make_plan(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes);

// A table for people.
std::string to_text(const Plan& plan);

// "1.5 GiB", "640 KiB".
std::string bytes_text(uint64_t bytes);

}  // namespace modelet::scheduler
