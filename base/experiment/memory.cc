#include "base/experiment/memory.h"

#include <algorithm>

#include "base/array/bf16.h"

namespace modelet {

uint64_t optimizer_values_per_parameter(OptimizerKind kind) {
  static constexpr ByChoice<OptimizerKind, uint64_t> kValues({
      {OptimizerKind::kAdam, 2},     // means of gradients and of their squares
      {OptimizerKind::kAdagrad, 1},  // sums of squares
      {OptimizerKind::kSgd, 1},      // momentum
      {OptimizerKind::kRmsprop, 1},  // means of squares
  });
  return kValues[kind];
}

uint64_t rule_values_per_parameter(MeanRule rule) {
  static constexpr ByChoice<MeanRule, uint64_t> kValues({
      {MeanRule::kAverage, 0},
      {MeanRule::kProx, 0},
      {MeanRule::kAdam, 2},
      {MeanRule::kMomentum, 1},
  });
  return kValues[rule];
}

uint64_t value_bytes(LayerKind kind, Precision precision) {
  const bool exact = kind == LayerKind::kHidden || precision == Precision::kFp32;
  return exact ? sizeof(float) : sizeof(Bf16);
}

RowShape row_shape(const ModeletSpec& modelet) {
  if (modelet.kind == LayerKind::kInput) return {modelet.inputs + 1, modelet.neurons()};
  return {modelet.neurons(), modelet.inputs};
}

uint64_t modelet_bytes(const ModeletSpec& modelet, const Experiment& experiment) {
  // Besides its vectors a row has its clock and, except in the input layer, its bias and the bias' state.
  const auto [rows, cols] = row_shape(modelet);
  const uint64_t value = value_bytes(modelet.kind, experiment.model.precision);
  const uint64_t vectors = 1 + optimizer_values_per_parameter(experiment.optimizer.kind);
  const uint64_t beside = (modelet.kind == LayerKind::kInput ? 1 : 4) * sizeof(float);
  uint64_t bytes = rows * (vectors * cols * value + beside);
  if (const uint64_t replicas = experiment.cluster.replicas; replicas > 1) {
    // The weights and biases that the replicas agreed upon, and for each row the share of a replica
    // in its mean. Then sets of rows, one bit per row, for every replica: as they are kept and as
    // they travel.
    bytes += rows * (cols * value + beside + sizeof(float));
    bytes += rule_values_per_parameter(experiment.cluster.rule) * rows * (cols * sizeof(float) + beside);
    bytes += (2 * replicas + 2) * rows / 8;
  }
  if (modelet.kind != LayerKind::kOutput) return bytes;
  if (uses_hash_tables(experiment.sampling)) {
    // Codes, and the active and the standby table set (hashing/index.h).
    const uint64_t entries = modelet.neurons() * experiment.sampling.tables;
    const uint64_t offsets = (uint64_t{1} << experiment.sampling.bits) * experiment.sampling.tables;
    bytes += sizeof(uint32_t) * (entries + 2 * (entries + offsets));
    // While a re-hash is at work: the rows that changed, at most all, and their new codes.
    bytes +=
        modelet.neurons() * modelet.inputs * sizeof(float) + sizeof(uint32_t) * (modelet.neurons() + entries);
  }
  if (retrieves_neurons(experiment.sampling.mode) && !uses_hash_tables(experiment.sampling)) {
    // Projections in bf16 and a float beside each; the basis (shard/modelet/low_rank_index.h).
    const uint64_t rank = std::min<uint64_t>(experiment.sampling.rank, modelet.inputs);
    bytes += modelet.neurons() * (rank * sizeof(uint16_t) + sizeof(float));
    bytes += (rank + 1) * modelet.inputs * sizeof(float);
  }
  return bytes;
}

uint64_t most_pairs(const ModeletSpec& modelet, const Experiment& experiment, const DataShape& shape) {
  const Experiment::Model& model = experiment.model;
  if (modelet.kind != LayerKind::kOutput || !model.centroids) return 0;
  // At worst, every pair of a label and a feature in every sample is a new one.
  const double labels = static_cast<double>(shape.train_rows) * shape.labels_per_row *
                        static_cast<double>(modelet.neurons()) / static_cast<double>(shape.labels);
  const uint64_t a_label =
      model.centroid_pairs > 0 ? std::min<uint64_t>(model.centroid_pairs, shape.features) : shape.features;
  return std::min(static_cast<uint64_t>(labels * shape.features_per_row), modelet.neurons() * a_label);
}

uint64_t pair_bytes(const ModeletSpec& modelet, const Experiment& experiment, const DataShape& shape) {
  const Experiment::Model& model = experiment.model;
  if (modelet.kind != LayerKind::kOutput || !model.centroids) return 0;
  const uint64_t values = model.classifiers > 0 ? 2 : 1;
  // Each neuron also has the offset of its pairs, the number of its samples, and the length of its sums.
  return most_pairs(modelet, experiment, shape) * (sizeof(uint32_t) + values * sizeof(float)) +
         modelet.neurons() * (sizeof(uint64_t) + sizeof(uint32_t) + sizeof(float)) +
         (model.classifiers > 0 ? modelet.neurons() * sizeof(float) : 0);
}

uint64_t sync_segment_rows(uint64_t cols) {
  return std::max<uint64_t>(1, kSyncValues / cols / kSyncRowMultiple) * kSyncRowMultiple;
}

uint64_t sync_buffer_bytes(const ModeletSpec& modelet, const Experiment& experiment) {
  const uint64_t replicas = experiment.cluster.replicas;
  if (replicas == 1) return 0;
  const auto [rows, cols] = row_shape(modelet);
  const uint64_t segment_rows = std::min(rows, sync_segment_rows(cols));
  constexpr uint64_t kNumbersOfRow = 3;  // beside its vectors: bias, its state, clock
  const auto segments = [&, cols = cols](uint64_t count, uint64_t vectors) {
    return count * segment_rows * (vectors * cols + kNumbersOfRow) * sizeof(float);
  };
  const uint64_t state = optimizer_values_per_parameter(experiment.optimizer.kind);
  // Of masked sums each replica sends its part of all rows, and sums one of as many parts of them as there are replicas.
  if (sends_sums(experiment)) {
    const uint64_t under_way = kSyncAhead + 1 + (kSyncAhead + replicas) / replicas;
    return segments(under_way + 2, state) + segments(2 * under_way, state);
  }
  // A segment holds the weights of rows or, when replicas are synchronised exactly, their optimiser state. One of the replicas
  // sends that state, but it is not known beforehand which one. So there are buffers for all of them, and
  // each message is shorter the more replicas there are.
  return segments(kSyncAhead + replicas, state) +
         segments((kSyncAhead + 1) * replicas, (state + replicas - 1) / replicas);
}

}  // namespace modelet
