// The partition: how a model's layers are divided into modelets. A pure function of the experiment and the
// shape of the data. It does not depend on the number of nodes, and every node computes the same partition by
// itself. Plain values; for any thread.
//
// A modelet is the unit of placement, migration and checkpoint: a contiguous range of neurons of one layer
// with all that belongs to them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"

namespace modelet {

enum class LayerKind : uint8_t { kInput, kHidden, kOutput };

struct ModeletSpec {
  uint32_t id = 0;     // index in the partition
  uint32_t layer = 0;  // 0: sparse input layer, then the dense hidden layers, last: the output layer
  LayerKind kind = LayerKind::kInput;
  uint64_t inputs = 0;          // what the layer reads: features that occur, or the previous hidden width
  uint64_t begin = 0, end = 0;  // neurons [begin, end) of the layer

  uint64_t neurons() const { return end - begin; }
  uint64_t parameters() const { return neurons() * (inputs + 1); }
  std::string name() const;  // "output.00000-04621": stable, used as file name
};

// Modelets in the order of layers and ranges.
std::vector<ModeletSpec> partition_model(const Experiment& experiment, const DataShape& shape);

// A block: neighbouring columns of a layer's activations that travel as one matrix. Neighbouring modelets of
// a node share a block of up to kMostColumns columns. Fewer blocks take less time and fewer bytes. But a
// codec rounds all values in a row of a block by the same step, so wide blocks are rounded more coarsely.
struct ColumnRange {
  uint64_t first = 0, count = 0;
};
inline constexpr uint64_t kMostColumns = 64;
// Adds the columns of the node's next modelet: to the last block if they fit there, else as a new block.
void append_columns(std::vector<ColumnRange>& blocks, const ModeletSpec& modelet);

}  // namespace modelet
