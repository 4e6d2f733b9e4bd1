// The memory that a modelet takes on a node, for plans: formulas for the way in which shard/modelet, hashing
// and node_agent/replicas store it, without a node or an allocation. Tests compare them with what is
// allocated (tests/scheduler/plan/prediction_test.cc). Pure functions; for any thread. Sizes are in bytes.
#pragma once

#include <cstdint>

#include "base/experiment/experiment.h"
#include "base/experiment/partition.h"

namespace modelet {

// Values of optimiser state per parameter.
uint64_t optimizer_values_per_parameter(OptimizerKind kind);
// Bytes of one weight, or of one value of its optimiser state. The precision is that of the wide layers.
// Dense hidden layers stay exact: they are small, and every step uses all of their weights.
uint64_t value_bytes(LayerKind kind, Precision precision);
// How a modelet is stored (shard/modelet/parameters.h): the input layer by feature, with its bias as one more
// row; the others by neuron.
struct RowShape {
  uint64_t rows = 0, cols = 0;
};
RowShape row_shape(const ModeletSpec& modelet);
// Weights, bias, optimiser state, and low-rank projection or hash tables of one modelet; with several
// replicas also the copy of weights and biases that all agreed upon.
uint64_t modelet_bytes(const ModeletSpec& modelet, const Experiment& experiment);
// The direct path of an output modelet (shard/data/pairs/pairs.h): the most pairs that it can have, and the bytes
// that they take in addition. How many there are is known only when the data is read.
uint64_t most_pairs(const ModeletSpec& modelet, const Experiment& experiment, const DataShape& shape);
uint64_t pair_bytes(const ModeletSpec& modelet, const Experiment& experiment, const DataShape& shape);

// Replicas exchange what they changed one segment of rows at a time (node_agent/replicas/replica_sync.h), at
// most kSyncValues weights of them: 4 MiB as floats. kSyncAhead segments travel while another is applied. As
// int8 each is 1 MiB, and together they are more than a link of 1 Gbit/s carries in a round trip of 20 ms.
inline constexpr uint64_t kSyncValues = uint64_t{1} << 20;
inline constexpr uint64_t kSyncAhead = 3;
inline constexpr uint64_t kSyncRowMultiple = 32;
// Rows of a segment of a modelet with `cols` columns; the last segment of a modelet may be shorter.
uint64_t sync_segment_rows(uint64_t cols);
// The most memory that exchanging the segments of this modelet takes: gathered, received, and encoded as
// messages. A node uses the same memory for all its modelets.
uint64_t sync_buffer_bytes(const ModeletSpec& modelet, const Experiment& experiment);

}  // namespace modelet
