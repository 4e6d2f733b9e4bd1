// The cut: how a model's layers are divided into modelets. A pure function of experiment and data shape: it
// does not depend on how many nodes there are, and every node computes the same cut by itself.
//
// A modelet is the unit of placement, migration and checkpoint: a contiguous range of neurons of one layer
// with its weights, bias, optimiser state and LSH tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/experiment.h"

namespace modelet {

enum class LayerKind : uint8_t { kInput, kHidden, kOutput };

struct ModeletSpec {
  uint32_t id = 0;     // index in the cut
  uint32_t layer = 0;  // 0: sparse input layer, then the dense hidden layers, last: the output layer
  LayerKind kind = LayerKind::kInput;
  uint64_t inputs = 0;          // width of what the layer reads: features, or the previous hidden width
  uint64_t begin = 0, end = 0;  // neurons [begin, end) of the layer

  uint64_t neurons() const { return end - begin; }
  uint64_t parameters() const { return neurons() * (inputs + 1); }
  std::string name() const;  // "output.00000-04621": stable, used as file name
};

// Modelets in the order of layers and ranges.
std::vector<ModeletSpec> cut_model(const Experiment& experiment, const DataShape& shape);

// Columns of a layer's activations, as they travel: those of modelets that lie side by side on one node make
// one block of up to kMostColumns. Fewer blocks take less time and fewer bytes, but the values of a block's
// row share the step that a codec rounds them by.
struct ColumnRange {
  uint64_t first = 0, count = 0;
};
inline constexpr uint64_t kMostColumns = 64;
// Adds the columns of the next modelet of a node's.
void append_columns(std::vector<ColumnRange>& blocks, const ModeletSpec& modelet);

// Values of optimiser state per parameter.
uint64_t optimizer_values_per_parameter(OptimizerKind kind);
// Bytes of one weight, or of one value of its optimiser state: model.precision is that of the wide layers.
// Dense hidden layers are small, and every weight of them is used in every step: they stay exact.
uint64_t value_bytes(LayerKind kind, const Experiment& experiment);
// How a modelet is stored (shard/parameters.h): the input layer by feature, with its bias as one more row;
// the others by neuron.
struct RowShape {
  uint64_t rows = 0, cols = 0;
};
RowShape row_shape(const ModeletSpec& modelet);
// Weights, bias, optimiser state and tables of one modelet, in bytes; with several replicas also the copy of
// weights and biases that all agreed upon.
uint64_t modelet_bytes(const ModeletSpec& modelet, const Experiment& experiment);

// Replicas exchange what they changed a segment of rows at a time (node_agent/replica_sync.h), at most
// kSyncValues weights of them: 4 MiB as floats. kSyncAhead segments travel while another is applied: 1 MiB
// each as int8, which is more than a link of 1 Gbit/s with 20 ms takes in a round trip.
inline constexpr uint64_t kSyncValues = uint64_t{1} << 20;
inline constexpr uint64_t kSyncAhead = 3;
inline constexpr uint64_t kSyncRowMultiple = 32;
// Rows of a segment, whose modelet has `cols` columns; the last of a modelet may be shorter.
uint64_t sync_segment_rows(uint64_t cols);
// What exchanging the segments of this modelet takes at most: gathered, received, and encoded as messages, in
// bytes. A node uses the same memory for all its modelets.
uint64_t sync_buffer_bytes(const ModeletSpec& modelet, const Experiment& experiment);

}  // namespace modelet
