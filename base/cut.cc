#include "base/cut.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "base/bf16.h"

namespace modelet {

std::string ModeletSpec::name() const {
  const char* kinds[] = {"input", "hidden", "output"};
  return fmt::format("{}{}.{:08}-{:08}", kinds[static_cast<int>(kind)],
                     kind == LayerKind::kHidden ? std::to_string(layer) : "", begin, end);
}

std::vector<ModeletSpec> cut_model(const Experiment& experiment, const DataShape& shape) {
  std::vector<ModeletSpec> cut;
  const auto add = [&](uint32_t layer, LayerKind kind, uint64_t inputs, uint64_t begin, uint64_t end) {
    cut.push_back({static_cast<uint32_t>(cut.size()), layer, kind, inputs, begin, end});
  };
  uint64_t inputs = shape.features;
  uint32_t layer = 0;
  for (const uint64_t width : experiment.model.hidden) {
    const uint64_t columns = experiment.modelets.hidden_columns;
    for (uint64_t begin = 0; begin < width; begin += columns)
      add(layer, layer == 0 ? LayerKind::kInput : LayerKind::kHidden, inputs, begin,
          std::min(width, begin + columns));
    inputs = width;
    ++layer;
  }
  const uint64_t pieces = std::clamp<uint64_t>(experiment.modelets.output_modelets, 1, shape.labels);
  for (uint64_t i = 0; i < pieces; ++i)
    add(layer, LayerKind::kOutput, inputs, shape.labels * i / pieces, shape.labels * (i + 1) / pieces);
  return cut;
}

uint64_t optimizer_values_per_parameter(OptimizerKind kind) { return kind == OptimizerKind::kAdam ? 2 : 1; }

uint64_t value_bytes(LayerKind kind, const Experiment& experiment) {
  const bool exact = kind == LayerKind::kHidden || experiment.model.precision == Precision::kFp32;
  return exact ? sizeof(float) : sizeof(Bf16);
}

RowShape row_shape(const ModeletSpec& modelet) {
  if (modelet.kind == LayerKind::kInput) return {modelet.inputs + 1, modelet.neurons()};
  return {modelet.neurons(), modelet.inputs};
}

uint64_t modelet_bytes(const ModeletSpec& modelet, const Experiment& experiment) {
  // Beside its vectors a row has its clock and, but in the input layer, its bias and the bias' state.
  const auto [rows, cols] = row_shape(modelet);
  const uint64_t vectors = 1 + optimizer_values_per_parameter(experiment.optimizer.kind);
  const uint64_t beside = (modelet.kind == LayerKind::kInput ? 1 : 4) * sizeof(float);
  uint64_t bytes = rows * (vectors * cols * value_bytes(modelet.kind, experiment) + beside);
  if (const uint64_t replicas = experiment.cluster.replicas; replicas > 1) {
    // What was agreed upon, and with how many a row was averaged; sets of rows, a bit each, of every replica
    // as they are and as they travel.
    bytes += rows * (cols * value_bytes(modelet.kind, experiment) + beside + sizeof(uint16_t));
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
    // Previews in bf16 and a float beside each; the basis (shard/preview_index.h).
    const uint64_t rank = std::min<uint64_t>(experiment.sampling.rank, modelet.inputs);
    bytes += modelet.neurons() * (rank * sizeof(uint16_t) + sizeof(float));
    bytes += (rank + 1) * modelet.inputs * sizeof(float);
  }
  return bytes;
}

void append_columns(std::vector<ColumnRange>& blocks, const ModeletSpec& modelet) {
  if (!blocks.empty() && blocks.back().first + blocks.back().count == modelet.begin &&
      blocks.back().count + modelet.neurons() <= kMostColumns)
    blocks.back().count += modelet.neurons();
  else
    blocks.push_back({modelet.begin, modelet.neurons()});
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
  // A row's weights, or, for settling, its optimiser state, which one of the replicas sends. Which of them is
  // not known, so each has buffers for all; messages are short where they are many.
  const uint64_t state = optimizer_values_per_parameter(experiment.optimizer.kind);
  return segments(kSyncAhead + replicas, state) +
         segments((kSyncAhead + 1) * replicas, (state + replicas - 1) / replicas);
}

}  // namespace modelet
