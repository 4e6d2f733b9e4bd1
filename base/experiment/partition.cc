#include "base/experiment/partition.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

namespace modelet {

std::string ModeletSpec::name() const {
  const char* kinds[] = {"input", "hidden", "output"};
  return fmt::format("{}{}.{:08}-{:08}", kinds[static_cast<int>(kind)],
                     kind == LayerKind::kHidden ? std::to_string(layer) : "", begin, end);
}

std::vector<ModeletSpec> partition_model(const Experiment& experiment, const DataShape& shape) {
  std::vector<ModeletSpec> partition;
  const auto add = [&](uint32_t layer, LayerKind kind, uint64_t inputs, uint64_t begin, uint64_t end) {
    partition.push_back({static_cast<uint32_t>(partition.size()), layer, kind, inputs, begin, end});
  };
  uint64_t inputs = shape.input_rows();
  uint32_t layer = 0;
  for (const uint64_t width : experiment.model.hidden) {
    const uint64_t columns = experiment.modelets.hidden_columns;
    for (uint64_t begin = 0; begin < width; begin += columns)
      add(layer, layer == 0 ? LayerKind::kInput : LayerKind::kHidden, inputs, begin,
          std::min(width, begin + columns));
    inputs = width;
    ++layer;
  }
  const uint64_t count = std::clamp<uint64_t>(experiment.modelets.output_modelets, 1, shape.labels);
  for (uint64_t i = 0; i < count; ++i)
    add(layer, LayerKind::kOutput, inputs, shape.labels * i / count, shape.labels * (i + 1) / count);
  return partition;
}

void append_columns(std::vector<ColumnRange>& blocks, const ModeletSpec& modelet) {
  if (!blocks.empty() && blocks.back().first + blocks.back().count == modelet.begin &&
      blocks.back().count + modelet.neurons() <= kMostColumns)
    blocks.back().count += modelet.neurons();
  else
    blocks.push_back({modelet.begin, modelet.neurons()});
}

}  // namespace modelet
