// Dissemination (Hensgen, Finkel, Manber, IJPP 1988; as an all-gather: Bruck et al., IEEE TPDS 1997): after
// ceil(log2 n) hops every rank has the blocks of all ranks. In each hop a rank passes on all blocks that it
// has. A rank that has the blocks of d ranks sends them to the rank d places before it, so each hop doubles
// what a rank has. A block is encoded once, by the rank that gives it, and passed on unchanged, so all
// ranks decode the same bytes.
//
// This is for small data and many ranks: each rank sends fewer messages than by sending to every other rank
// directly, but they take more rounds. Internal to comm/. Memory is kept for the next operation.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/messaging/messenger.h"

namespace modelet::comm {

class Dissemination {
 public:
  explicit Dissemination(Messenger& messenger) : messenger_(messenger) {}

  // Gathers the blocks of all ranks, as part of an operation that begin_send() began. Every rank must give
  // the same number of blocks, of the same shapes.
  void run(std::span<const OutBlock> mine);
  // Decodes what run() gathered, if each rank gave one block: rank r's block goes into blocks[r], which has
  // one element.
  void decode(std::span<const std::vector<InBlock>> blocks);

 private:
  void append(std::span<const BlockHeader> headers, std::span<const std::byte> bytes);

  Messenger& messenger_;
  // What has arrived, in the order of the ranks at distance 0, 1, ... after this one.
  std::vector<BlockHeader> headers_;
  std::vector<std::byte> bytes_;
};

}  // namespace modelet::comm
