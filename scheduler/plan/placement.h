// Placement: which node holds which modelets. It minimises the time of the slowest node, as the cost model
// (cost_model.h) predicts it, within the memory of each node. Pure functions: the same arguments give the
// same plan.
//
// The nodes work layer by layer and meet after each, so a step takes
//     sum over layers of (max over nodes of the time of the node's part of that layer).
// Nodes whose speeds differ by no more than measurements do (15 % of the time of the whole model) count as
// equal.
//
// A placement never changes what is learned, so a wrong prediction only costs time.
//
// With replicas (cluster.replicas), the given order of the nodes is: the ranks of the first replica, then
// those of the second, and so on (node_agent/replicas/rank_grid.h). All replicas place their modelets alike,
// so each rank counts as fast as the weakest node of this rank in any replica.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "base/experiment/partition.h"
#include "scheduler/plan/cost_model.h"
#include "scheduler/plan/traffic.h"

namespace modelet::scheduler {

struct NodePlan {
  std::string name;
  std::vector<uint32_t> modelets;  // ids, ascending
  uint64_t memory_bytes = 0;       // modelets, buffers of a step and of synchronisation, the program
  uint64_t memory_limit = 0;
  std::vector<PhaseSeconds> layers;  // [layer] of computing
  double seconds_per_step = 0;       // their sum
  uint64_t bytes_sent_per_step = 0;  // with envelopes, before LZ4; with the share of the synchronisation
  uint64_t sync_bytes_per_step = 0;  // of these, those to the other replicas
};

struct Plan {
  std::vector<ModeletSpec> partition;
  std::vector<uint32_t> owner;  // [partition] -> rank; an index in `nodes` for the first replica
  uint32_t replicas = 1;
  std::vector<NodePlan> nodes;          // in the order given
  std::vector<StepExchange> exchanges;  // of one replica in a step, in their order; empty with one node
  bool selects_by_activations = false;  // StepPhase::kSelect needs activations of all nodes
  uint64_t parameters = 0;
  double seconds_per_step = 0;      // of computing: sum over layers of the slowest node
  double alone_seconds = 0;         // of the fastest node alone, for as many samples as all replicas take
  uint64_t alone_memory_bytes = 0;  // that this node would need
  // What a node would send in a step if all gradients went through a ring all-reduce in fp32.
  uint64_t dense_allreduce_bytes = 0;
};

// Throws Error that names the missing memory if the model does not fit. Throws UsageError if the nodes cannot
// form equal replicas, or if a message between them would hold more matrices than the wire format allows.
// `nodes` must not be empty. If there are more nodes than modelets, some nodes get none.
Plan make_plan(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes);

// Seconds that the messages of a step take over such links if no computing hides them. The synchronisation of
// replicas counts with its share for one step.
double wire_seconds(const Plan& plan, const Link& link);

// A table for people. It also says whether several nodes pay off compared with the fastest of them alone.
std::string to_text(const Plan& plan, const Link& link);

}  // namespace modelet::scheduler
