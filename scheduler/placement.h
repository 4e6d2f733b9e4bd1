// Placement: which node holds which modelet. From what the cost model predicts (cost_model.h) it minimises
// the time of the slowest node within the memory of each. Pure functions: the same arguments give the same
// plan.
//
// The nodes work layer by layer and meet after each, so a step takes
//     sum over layers of (max over nodes of the time of the node's part of that layer).
// Nodes whose speeds differ by no more than measurements do (15 % of the whole model's time) count as equal.
//
// Which nodes hold what never changes what is learned, so a wrong prediction costs time only.
//
// With replicas (cluster.replicas) the nodes, in the order given, are the ranks of one replica after the
// other (node_agent/rank_grid.h). All replicas place their modelets alike, so each place among them is as
// strong as the weakest of its nodes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/cut.h"
#include "base/experiment.h"
#include "scheduler/cost_model.h"
#include "scheduler/traffic.h"

namespace modelet::scheduler {

struct NodePlan {
  std::string name;
  std::vector<uint32_t> modelets;  // ids, ascending
  uint64_t memory_bytes = 0;       // modelets + buffers of a step and of synchronisation + the program
  uint64_t memory_limit = 0;
  std::vector<PartSeconds> layers;   // [layer] computing
  double seconds_per_step = 0;       // their sum
  uint64_t bytes_sent_per_step = 0;  // with envelopes, before LZ4; synchronisation of replicas by its share
};

struct Plan {
  std::vector<ModeletSpec> cut;
  std::vector<uint32_t> owner;  // [cut] -> index in nodes, of the first replica
  uint32_t replicas = 1;
  std::vector<NodePlan> nodes;          // in the order given
  std::vector<Exchange> exchanges;      // of a step in each replica, in their order; none with one node
  bool selects_by_activations = false;  // StepPart::kSelect needs those of all nodes (hash tables)
  uint64_t parameters = 0;
  double seconds_per_step = 0;  // computing, slowest node of each layer
  uint64_t dense_allreduce_bytes =
      0;  // what a node would send a step in a ring all-reduce of all gradients, fp32
};

// Throws Error if the model does not fit, with the missing memory, and UsageError if the nodes make no equal
// replicas or a message between them would hold more matrices than the wire format allows. `nodes` must not
// be empty. With more nodes than modelets some get none.
Plan make_plan(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes);

// A table for people.
std::string to_text(const Plan& plan);

// "1.5 GiB", "640 KiB".
std::string bytes_text(uint64_t bytes);

}  // namespace modelet::scheduler
