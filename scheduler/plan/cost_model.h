// The cost model: what a modelet costs a node in memory and in each part of a step. Pure functions.
//
// On a node whose speed was measured (node_agent/machine/capacity.h), a part of a step takes the sum of
//     products / rate of the products          (GFLOP/s, of fp32 and of bf16)
//   + bytes of rows / rate of row updates      (GB/s, rows at random places in memory)
//   + everything else, as time of a known core.
// A sum, and not the largest one as in a roofline model, because these follow one another. Some work belongs
// to a node, whatever it holds: every node sorts the features of the whole batch and lays out the activations
// of the whole batch, so twice the nodes are not twice as fast. The constants were measured at Amazon-670K's
// shape (docs/decisions/0019-a-cost-model-of-measured-parts.md); experiments/simulate/check.py compares
// predictions with runs.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/experiment/experiment.h"
#include "base/experiment/partition.h"

namespace modelet::scheduler {

// What a node offers to a run; rates of all its cores together.
struct NodeCapacity {
  std::string name;
  uint32_t cores = 1;
  uint64_t memory_bytes = 0;  // that a run may use
  double gflops = 0;          // products in fp32
  double memory_gbps = 0;     // rows read, changed and written back; GB/s
  double bf16_gflops = 0;     // products in bf16; 0: as in fp32

  double bf16_rate() const { return bf16_gflops > 0 ? bf16_gflops : gflops; }
};

// What a node does in a step, in this order (TrainingStep::run): before, between and after the exchanges. The
// first layer's kForward of the next step comes before the output layer's kUpdate.
enum class StepPart : uint8_t {
  kForward,        // hidden layers, micro-batch by micro-batch
  kSelect,         // the output layer's active set is chosen, its rows are gathered; once
  kOutputForward,  // logits and gradient of the hidden layer, micro-batch by micro-batch
  kBackward,       // hidden layers but the first
  kUpdate,         // once nothing depends on a peer any more
};
inline constexpr size_t kStepParts = 5;

struct Work {
  double flops = 0, bf16_flops = 0;
  double traffic_bytes = 0;      // to and from memory
  double reference_seconds = 0;  // of one core that does kReferenceGflops; a node is faster by its gflops
};
inline constexpr double kReferenceGflops = 110;

// The work of a node in each part of a step.
using PartSeconds = std::array<double, kStepParts>;
double sum(const PartSeconds& seconds);

struct StepWork {
  std::array<Work, kStepParts> parts{};

  Work& at(StepPart part) { return parts[static_cast<size_t>(part)]; }
  PartSeconds seconds(const NodeCapacity& node) const;
};

struct ModeletCost {
  uint64_t memory_bytes = 0;  // parameters, optimiser state, tables; its part of the active neurons' buffers
  StepWork work;
};

// Neurons of an output layer that take part in a step: gathered once for the batch, or counted over all
// samples.
struct ActiveNeurons {
  double rows = 0;   // whose weights are read
  double pairs = 0;  // (sample, neuron) logits
};

// The costs of one experiment, which must outlive it, on data of one shape.
class CostModel {
 public:
  CostModel(const Experiment& experiment, const DataShape& shape) : experiment_(experiment), shape_(shape) {}

  ModeletCost of(const ModeletSpec& modelet) const;
  // The work of every node for a layer (a number as in ModeletSpec), whatever it holds of it.
  StepWork of_batch(uint32_t layer) const;
  ActiveNeurons active_neurons() const;
  // Rows of the input layer that a batch touches if its features are drawn at random.
  double touched_features() const;
  // Activations and gradients of the hidden layers in a step, which every node keeps whole.
  uint64_t buffer_bytes() const;
  // Bytes that each node needs, whatever it holds: places of the labels of samples
  // (shard/data/store/prepared.h), and the labels of test samples.
  uint64_t label_bytes() const;

 private:
  double candidates_kept() const;
  double asking_samples() const;
  double features_of_batch() const;
  double read_traffic(double parameters, LayerKind kind) const;
  double update_traffic(double parameters, LayerKind kind) const;
  double active_bytes() const;
  double train_label_bytes() const;
  StepWork input_work(const ModeletSpec& modelet) const;
  StepWork hidden_work(const ModeletSpec& modelet) const;
  StepWork output_work(const ModeletSpec& modelet) const;

  const Experiment& experiment_;
  const DataShape shape_;
};

}  // namespace modelet::scheduler
