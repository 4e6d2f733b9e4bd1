// Placement: which node holds which modelet. A cost model predicts, from the experiment and the data's shape,
// the memory and the work of each modelet and the bytes of each exchange; the placement minimises the time of
// the slowest node within the memory of each. Pure functions: the same arguments give the same plan.
//
// Model of a step. The nodes work layer by layer and meet after each, so a step takes
//     sum over layers of (max over nodes of the time of the node's modelets of that layer),
// a modelet taking, in each part of the step, max(flops / gflops, bytes / memory_gbps) / kRooflineShare on a
// node (roofline; Williams, Waterman, Patterson 2009). Which nodes hold what never changes what is learned,
// so a wrong prediction costs time only.
//
// With replicas (cluster.replicas) the nodes, in the order given, are the ranks of one replica after the
// other (node_agent/rank_grid.h). All replicas place their modelets alike, so each place among them is as
// strong as the weakest of its nodes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/cut.h"
#include "base/experiment.h"

namespace modelet::scheduler {

// Of the roofline, what a step reaches: gathering batches, exponentials and transposes are not in the model.
// Measured on one node at Amazon-670K's shape (experiments/simulate/README.md).
inline constexpr double kRooflineShare = 0.87;

struct NodeCapacity {
  std::string name;
  uint32_t cores = 1;
  uint64_t memory_bytes = 0;  // that a run may use
  double gflops = 0;          // of all cores together
  double memory_gbps = 0;     // of all cores together; GB/s
};

// What a node does in a step, in this order (TrainingStep::run): before, between and after the exchanges.
enum class StepPart : uint8_t {
  kForward,        // hidden layers, micro-batch by micro-batch
  kSelect,         // the output layer's active set is chosen, its rows are gathered; once
  kOutputForward,  // logits and gradient of the hidden layer, micro-batch by micro-batch
  kBackward,       // hidden layers but the first
  kUpdate,         // once nothing depends on a peer any more
};
inline constexpr size_t kStepParts = 5;

struct Work {
  double flops = 0;
  double traffic_bytes = 0;  // to and from memory
};

// Predicted cost of one modelet.
struct ModeletCost {
  uint64_t memory_bytes = 0;  // parameters, optimiser state, tables; its part of the active neurons' buffers
  std::array<Work, kStepParts> step{};

  Work& at(StepPart part) { return step[static_cast<size_t>(part)]; }
};

// Of a node in each part of a step.
using PartSeconds = std::array<double, kStepParts>;

// One exchange of a step: every node sends every other one message.
struct Exchange {
  enum class Kind : uint8_t { kActivations, kOutput, kGradient, kClip };
  Kind kind = Kind::kActivations;
  uint32_t layer = 0;                        // hidden layer whose columns travel
  uint64_t samples = 0;                      // of the micro-batch, or of the batch
  std::vector<std::vector<uint64_t>> bytes;  // [from][to], with envelopes, before LZ4
};

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

ModeletCost predict_cost(const ModeletSpec& modelet, const Experiment& experiment, const DataShape& shape);

// Throws Error if the model does not fit, with the missing memory, and UsageError if the nodes make no equal
// replicas or a message between them would hold more matrices than the wire format allows. `nodes` must not
// be empty. With more nodes than modelets some get none.
Plan make_plan(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes);

// A table for people.
std::string to_text(const Plan& plan);

// "1.5 GiB", "640 KiB".
std::string bytes_text(uint64_t bytes);

}  // namespace modelet::scheduler
