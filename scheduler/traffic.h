// What the nodes of a plan send each other in a step. Pure functions; docs/wire_format.md gives the sizes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/cut.h"
#include "base/experiment.h"

namespace modelet::scheduler {

// One exchange of a step: every node sends every other one message.
struct Exchange {
  enum class Kind : uint8_t { kActivations, kOutput, kGradient, kClip };
  Kind kind = Kind::kActivations;
  uint32_t layer = 0;                        // hidden layer whose columns travel
  uint64_t samples = 0;                      // of the micro-batch, or of the batch
  std::vector<std::vector<uint64_t>> bytes;  // [from][to], with envelopes, before LZ4
};

// In the order of the step; none with one node. owner: [cut] -> node. Bytes are at most these: int8 and int4
// leave out zeros where that is shorter. Throws UsageError if a message would hold more matrices than the
// wire format allows.
std::vector<Exchange> step_exchanges(const Experiment& experiment, std::span<const ModeletSpec> cut,
                                     std::span<const uint32_t> owner, uint32_t nodes);

// What the holder of a modelet sends to the other replicas to keep it the same everywhere, by a step's share.
uint64_t sync_bytes_per_step(const ModeletSpec& modelet, const Experiment& experiment,
                             const DataShape& shape);

}  // namespace modelet::scheduler
