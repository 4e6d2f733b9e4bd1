// Predicts the memory that a modelet takes on a node, for plans. The formulas follow the way in which
// shard/modelet, hashing and node_agent/replicas store a modelet; they need neither a node nor an allocation.
// Tests compare them with real allocations (tests/scheduler/plan/prediction_test.cc). Pure functions; for any
// thread. Sizes are in bytes.
#pragma once

#include <cstdint>

#include "base/experiment/experiment.h"
#include "base/experiment/partition.h"

namespace modelet {

// Values of optimiser state per parameter.
uint64_t optimizer_values_per_parameter(OptimizerKind kind);
// Moments that a rule keeps for each parameter (cluster.rule). They are fp32.
uint64_t rule_values_per_parameter(MeanRule rule);
// Bytes of one weight, or of one value of its optimiser state. `precision` is that of the wide layers. Dense
// hidden layers stay in fp32: they are small, and every step uses all of their weights.
uint64_t value_bytes(LayerKind kind, Precision precision);
// How a modelet is stored (shard/modelet/parameters.h): the input layer by feature, with its bias as one more
// row; the others by neuron.
struct RowShape {
  uint64_t rows = 0, cols = 0;
};
RowShape row_shape(const ModeletSpec& modelet);
// Weights, bias, optimiser state, and low-rank projection or hash tables of one modelet; with several
// replicas also the copy of weights and biases that all agreed upon, and the moments of cluster.rule.
uint64_t modelet_bytes(const ModeletSpec& modelet, const Experiment& experiment);
// The direct path of an output modelet (shard/data/pairs/pairs.h): an upper bound of its pairs, and the bytes
// that they take beyond modelet_bytes(). The exact number of pairs is known only when the data has been read.
uint64_t most_pairs(const ModeletSpec& modelet, const Experiment& experiment, const DataShape& shape);
uint64_t pair_bytes(const ModeletSpec& modelet, const Experiment& experiment, const DataShape& shape);

// Replicas exchange changed rows one segment at a time (node_agent/replicas/replica_sync.h). A segment has at
// most kSyncValues weights, 4 MiB as floats and 1 MiB as int8, but at least kSyncRowMultiple rows. kSyncAhead
// segments travel while another is applied: as int8 they are more than a link of 1 Gbit/s carries in a round
// trip of 20 ms.
inline constexpr uint64_t kSyncValues = uint64_t{1} << 20;
inline constexpr uint64_t kSyncAhead = 3;
inline constexpr uint64_t kSyncRowMultiple = 32;
// Rows of a segment of a modelet with `cols` columns; the last segment of a modelet may be shorter.
uint64_t sync_segment_rows(uint64_t cols);
// The most memory that exchanging the segments of this modelet takes: segments gathered, received, and
// encoded as messages. All modelets of a node share this memory.
uint64_t sync_buffer_bytes(const ModeletSpec& modelet, const Experiment& experiment);

}  // namespace modelet
