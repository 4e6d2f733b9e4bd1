// What the nodes of a plan send each other in a step. Pure functions; docs/wire_format.md gives the sizes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/experiment/experiment.h"
#include "base/experiment/partition.h"

namespace modelet::scheduler {

// One exchange of a step, in which every node sends one message to every other node. The size of a message
// depends on one of the two nodes only: on the sender if it sends what it has (activations), on the receiver
// if it gets what concerns its columns (gradients).
struct StepExchange {
  enum class Kind : uint8_t { kActivations, kOutput, kGradient, kClip };
  Kind kind = Kind::kActivations;
  uint32_t layer = 0;           // hidden layer whose columns travel
  uint64_t samples = 0;         // of the micro-batch, or of the batch
  bool by_sender = true;        // the size depends on the sender; false: on the receiver
  std::vector<uint64_t> bytes;  // [node] size of a message, with its envelope, before LZ4

  uint64_t message(size_t from, size_t to) const { return from == to ? 0 : bytes[by_sender ? from : to]; }
  uint64_t sent(size_t node) const;
  uint64_t received(size_t node) const;
};

// The exchanges in the order of the step; empty with one node. owner: [modelet of the partition] -> node. The
// bytes are upper bounds: int8 and int4 leave out zeros where that makes a message shorter. Throws UsageError
// if a message would hold more matrices than the wire format allows.
std::vector<StepExchange> step_exchanges(const Experiment& experiment, std::span<const ModeletSpec> partition,
                                         std::span<const uint32_t> owner, uint32_t nodes);

// The link between each node and the others.
struct Link {
  double bytes_per_second = 125e6;  // in each direction; 1 Gbit/s
  double round_trip_seconds = 1e-3;
};
// Seconds that the exchanges of a step take if no computing hides them. Each exchange takes the time of the
// node that sends or receives most, plus half a round trip if it has to wait for the previous exchange. The
// micro-batches of one exchange follow one another without waiting.
double wire_seconds(std::span<const StepExchange> exchanges, const Link& link);

// The bytes that the holder of a modelet sends to the other replicas to keep the modelet the same in all
// replicas, divided by the number of steps between two synchronisations.
uint64_t sync_bytes_per_step(const ModeletSpec& modelet, const Experiment& experiment,
                             const DataShape& shape);

}  // namespace modelet::scheduler
