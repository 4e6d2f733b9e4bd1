// What the nodes of a plan send each other in a step. Pure functions; docs/wire_format.md gives the sizes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/experiment/experiment.h"
#include "base/experiment/partition.h"

namespace modelet::scheduler {

// One exchange of a step: every node sends every other one message. The size follows from what one of the two
// holds: the sender if it sends what it has (activations), the receiver if it is sent what concerns it
// (gradients).
struct Exchange {
  enum class Kind : uint8_t { kActivations, kOutput, kGradient, kClip };
  Kind kind = Kind::kActivations;
  uint32_t layer = 0;           // hidden layer whose columns travel
  uint64_t samples = 0;         // of the micro-batch, or of the batch
  bool by_sender = true;        // whose `bytes` count
  std::vector<uint64_t> bytes;  // [node] of a message, with its envelope, before LZ4

  uint64_t message(size_t from, size_t to) const { return from == to ? 0 : bytes[by_sender ? from : to]; }
  uint64_t sent(size_t node) const;
  uint64_t received(size_t node) const;
};

// In the order of the step; none with one node. owner: [modelet of the partition] -> node. Bytes are upper
// bounds: int8 and int4 leave out zeros where that is shorter. Throws UsageError if a message would hold more
// matrices than the wire format allows.
std::vector<Exchange> step_exchanges(const Experiment& experiment, std::span<const ModeletSpec> partition,
                                     std::span<const uint32_t> owner, uint32_t nodes);

// The link of each node to the others.
struct Link {
  double bytes_per_second = 125e6;  // each way; 1 Gbit/s
  double round_trip_seconds = 1e-3;
};
// How long the exchanges of a step take if nothing hides them: for each exchange the time of the node that
// sends or receives most, and half a round trip if it waits for the one before. Micro-batches of an exchange
// follow one another without waiting.
double wire_seconds(std::span<const Exchange> exchanges, const Link& link);

// The bytes that the holder of a modelet sends to the other replicas to keep it the same everywhere, as a
// share for each step.
uint64_t sync_bytes_per_step(const ModeletSpec& modelet, const Experiment& experiment,
                             const DataShape& shape);

}  // namespace modelet::scheduler
