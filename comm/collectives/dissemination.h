// Dissemination (Hensgen, Finkel, Manber, IJPP 1988; as an all-gather: Bruck et al., IEEE TPDS 1997): after
// ceil(log2 n) hops every rank has what each gave. In each hop a rank passes on all it has. If it holds the
// blocks of d ranks, it sends them to the rank d places before it, so each hop doubles what a rank has.
// Blocks are encoded once by their giver and passed on as they came, so all ranks decode the same bytes.
//
// For small data and many ranks: fewer messages than to every rank directly, in more rounds. Internal to
// comm/; keeps its memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/messaging/messenger.h"

namespace modelet::comm {

class Dissemination {
 public:
  explicit Dissemination(Messenger& messenger) : messenger_(messenger) {}

  // A part of an operation that has begun to send. `mine`: as many blocks, of the same shapes, on every rank.
  void run(std::span<const OutBlock> mine);
  // Decodes what run() gathered of one block of each rank, into blocks[rank], which has one element.
  void decode(std::span<const std::vector<InBlock>> blocks);

 private:
  void append(std::span<const BlockHeader> headers, std::span<const std::byte> bytes);

  Messenger& messenger_;
  // Of the ranks at distance 0, 1, ...
  std::vector<BlockHeader> headers_;
  std::vector<std::byte> bytes_;
};

}  // namespace modelet::comm
