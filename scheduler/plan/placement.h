// Placement: which node holds which modelet. From the predictions of the cost model (cost_model.h) it
// minimises the time of the slowest node within the memory of each. Pure functions: the same arguments give
// the same plan.
//
// The nodes work layer by layer and meet after each, so a step takes
//     sum over layers of (max over nodes of the time of the node's part of that layer).
// Nodes whose speeds differ by no more than measurements do (15 % of the time of the whole model) count as
// equal.
//
// A placement never changes what is learned, so a wrong prediction only costs time.
//
// With replicas (cluster.replicas) the nodes, in the order given, are the ranks of one replica after the
// other (node_agent/replicas/rank_grid.h). All replicas place their modelets alike, so a place counts as the
// weakest of its nodes in all replicas.
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
  uint64_t memory_bytes = 0;       // modelets + buffers of a step and of synchronisation + the program
  uint64_t memory_limit = 0;
  std::vector<PartSeconds> layers;   // [layer] computing
  double seconds_per_step = 0;       // their sum
  uint64_t bytes_sent_per_step = 0;  // with envelopes, before LZ4; synchronisation of replicas by its share
  uint64_t sync_bytes_per_step = 0;  // of these, to the other replicas
};

struct Plan {
  std::vector<ModeletSpec> partition;
  std::vector<uint32_t> owner;  // [partition] -> index in nodes, of the first replica
  uint32_t replicas = 1;
  std::vector<NodePlan> nodes;          // in the order given
  std::vector<Exchange> exchanges;      // of a step in each replica, in their order; none with one node
  bool selects_by_activations = false;  // StepPart::kSelect needs those of all nodes (hash tables)
  uint64_t parameters = 0;
  double seconds_per_step = 0;  // computing, slowest node of each layer
  double alone_seconds = 0;     // the fastest of the nodes alone, for as many samples as all take in a step
  uint64_t alone_memory_bytes = 0;  // that it would need
  uint64_t dense_allreduce_bytes =
      0;  // what a node would send a step in a ring all-reduce of all gradients, fp32
};

// Throws Error that names the missing memory if the model does not fit; UsageError if the nodes cannot form
// equal replicas, or if a message between them would hold more matrices than the wire format allows. `nodes`
// must not be empty. With more nodes than modelets some get none.
Plan make_plan(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes);

// How long the messages of a step take on such links if nothing hides them; the synchronisation of replicas
// counts by its share.
double wire_seconds(const Plan& plan, const Link& link);

// A table for people, which also says whether several nodes pay, compared with the fastest of them alone.
std::string to_text(const Plan& plan, const Link& link);

}  // namespace modelet::scheduler
