// The cost model: what a modelet costs a node in memory and in each phase of a step. Pure functions.
//
// On a node whose speed was measured (node_agent/machine/capacity.h), a phase of a step takes the sum of
//     products / rate of the products          (GFLOP/s, of fp32 and of bf16)
//   + bytes of rows / rate of row updates      (GB/s, rows at random places in memory)
//   + everything else, as seconds of a core of known speed.
// The terms are added (a roofline model would take the largest), because these kinds of work follow one
// another. Some work is the same on every node, whichever modelets it holds: every node sorts the features of
// the whole batch and lays out the activations of the whole batch. So twice the nodes are not twice as fast.
// The constants were measured at the shape of Amazon-670K
// (docs/decisions/0019-a-cost-model-of-measured-parts.md); experiments/simulate/check.py compares predictions
// with runs.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/experiment/experiment.h"
#include "base/experiment/partition.h"

namespace modelet::scheduler {

// What a node offers to a run. Rates are those of all its cores together.
struct NodeCapacity {
  std::string name;
  uint32_t cores = 1;
  uint64_t memory_bytes = 0;  // that a run may use
  double gflops = 0;          // products in fp32
  double memory_gbps = 0;     // rows read, changed and written back; GB/s
  double bf16_gflops = 0;     // products in bf16; 0: as in fp32

  double bf16_rate() const { return bf16_gflops > 0 ? bf16_gflops : gflops; }
};

// The phases of a step in the order in which a node does them (TrainingStep::run): before, between and after
// the exchanges. One thing comes earlier: the first kForward of the next step comes before the kUpdate of the
// output layer.
enum class StepPhase : uint8_t {
  kForward,        // hidden layers, micro-batch by micro-batch
  kSelect,         // the output layer's active set is chosen, its rows are gathered; once
  kOutputForward,  // logits and gradient of the hidden layer, micro-batch by micro-batch
  kBackward,       // hidden layers except the first
  kUpdate,         // once nothing more is needed from peers
};
inline constexpr size_t kStepPhases = 5;

struct Work {
  double flops = 0, bf16_flops = 0;
  double traffic_bytes = 0;      // to and from memory
  double reference_seconds = 0;  // on a core of kReferenceGflops; scaled by the gflops of the node
};
inline constexpr double kReferenceGflops = 110;

// The work of a node in each phase of a step.
using PhaseSeconds = std::array<double, kStepPhases>;
double sum(const PhaseSeconds& seconds);

struct StepWork {
  std::array<Work, kStepPhases> phases{};

  Work& at(StepPhase phase) { return phases[static_cast<size_t>(phase)]; }
  PhaseSeconds seconds(const NodeCapacity& node) const;
};

struct ModeletCost {
  uint64_t memory_bytes = 0;  // parameters, optimiser state, tables; its part of the active neurons' buffers
  StepWork work;
};

// Neurons of an output layer that take part in a step.
struct ActiveNeurons {
  double rows = 0;     // neurons whose weights are read, once for all samples that share a set
  double pairs = 0;    // logits: pairs of a sample and a neuron
  double changed = 0;  // neurons whose weights are changed, once in the step
};

// The costs of one experiment on data of one shape. The experiment must outlive this object.
class CostModel {
 public:
  CostModel(const Experiment& experiment, const DataShape& shape) : experiment_(experiment), shape_(shape) {}

  ModeletCost of(const ModeletSpec& modelet) const;
  // The work that every node has for a layer, whichever modelets it holds. `layer` is a number as in
  // ModeletSpec.
  StepWork of_batch(uint32_t layer) const;
  ActiveNeurons active_neurons() const;
  // The number of rows of the input layer that a batch touches if its features are drawn at random.
  double touched_features() const;
  // Bytes of the activations and gradients of the hidden layers in a step. Every node keeps them for all
  // columns.
  uint64_t buffer_bytes() const;
  // Bytes for labels that each node needs, whichever modelets it holds: the places of the labels of training
  // samples (shard/data/store/prepared.h), and the labels of test samples.
  uint64_t label_bytes() const;

 private:
  double candidates_kept() const;
  double asking_samples() const;
  double features_of_batch() const;
  double read_traffic(double parameters, LayerKind kind) const;
  double update_traffic(double parameters, LayerKind kind) const;
  double active_bytes() const;
  double train_label_bytes() const;
  // Adds products of weights and activations, in the precision in which they are computed.
  void multiply(Work& work, double flops) const;
  StepWork input_work(const ModeletSpec& modelet) const;
  StepWork hidden_work(const ModeletSpec& modelet) const;
  StepWork output_work(const ModeletSpec& modelet) const;

  const Experiment& experiment_;
  const DataShape shape_;
};

}  // namespace modelet::scheduler
