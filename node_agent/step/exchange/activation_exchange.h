// ActivationExchange: gives every rank the whole activations of a hidden layer. Each rank has computed the
// columns of its own modelets. Owns the lists of blocks, and knows which rank has which columns. Used by
// one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/array/matrix.h"
#include "comm/codec/codec.h"
#include "comm/collectives/group.h"
#include "node_agent/step/exchange/sharding.h"

namespace modelet::agent {

// What a rank tells the others with its first activations of a step.
struct StepRequests {
  // Before an exchange, what this rank requests; after it, what any rank requests.
  bool stop = false;                // all stop after the step
  bool snapshot = false;            // all make a snapshot after it
  bool trace = false;               // all trace the step after it
  uint32_t next_micro_batches = 1;  // for the next step; rank 0 decides
};

class ActivationExchange {
 public:
  // All arguments must outlive this object.
  ActivationExchange(const Sharding& sharding, comm::Group& group, const comm::Codec& codec);

  // Sends this rank's columns of the rows [samples, width] of some samples, and `notice` if it is not null.
  // They become what the others decode, so that all ranks have the same activations and know the same zeros.
  // Does not wait.
  void send(comm::Tag tag, size_t layer, Matrix rows, const StepRequests* requests);
  // Waits for the other columns of the same rows. If a notice was sent, `notice` becomes the combined
  // notice of all ranks.
  void collect(comm::Tag tag, size_t layer, Matrix rows, StepRequests* requests);

 private:
  using Bytes = std::array<std::byte, 2>;  // a notice as it travels: docs/wire_format.md

  void combine_requests(StepRequests& requests) const;

  const Sharding& sharding_;
  comm::Group& group_;
  const comm::Codec& codec_;
  std::vector<Bytes> requests_;  // [size]
  // Members only to reuse their memory.
  std::vector<comm::OutBlock> mine_;
  std::vector<comm::InBlock> as_received_;
  std::vector<std::vector<comm::InBlock>> theirs_;  // [size]
};

}  // namespace modelet::agent
