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

uint64_t modelet_bytes(const ModeletSpec& modelet, const Experiment& experiment) {
  // The input layer is stored and updated by feature, with its bias as one more row; the others by neuron.
  // Beside its vectors a row has its bias, the bias' state and its clock (shard/parameters.h).
  const bool input = modelet.kind == LayerKind::kInput;
  const uint64_t rows = input ? modelet.inputs + 1 : modelet.neurons();
  const uint64_t cols = input ? modelet.neurons() : modelet.inputs;
  const uint64_t vectors = 1 + optimizer_values_per_parameter(experiment.optimizer.kind);
  constexpr uint64_t kRowState = 4 * sizeof(float);
  uint64_t bytes = rows * (vectors * cols * value_bytes(modelet.kind, experiment) + kRowState);
  if (experiment.cluster.replicas > 1)
    bytes += rows * (cols * value_bytes(modelet.kind, experiment) + kRowState);
  const bool hashed = experiment.sampling.mode == SamplingMode::kLsh ||
                      experiment.sampling.mode == SamplingMode::kLshPerSample;
  if (modelet.kind == LayerKind::kOutput && hashed) {
    // Codes, and the active and the standby table set (hashing/index.h).
    const uint64_t entries = modelet.neurons() * experiment.sampling.tables;
    const uint64_t offsets = (uint64_t{1} << experiment.sampling.bits) * experiment.sampling.tables;
    bytes += sizeof(uint32_t) * (entries + 2 * (entries + offsets));
    // While a re-hash is at work: the rows that changed, at most all, and their new codes.
    bytes +=
        modelet.neurons() * modelet.inputs * sizeof(float) + sizeof(uint32_t) * (modelet.neurons() + entries);
  }
  return bytes;
}

}  // namespace modelet
