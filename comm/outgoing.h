// Outgoing: the message that a rank is about to send. Its blocks are encoded once, into memory of a pool
// (comm/pool.h), and it is sent from there to one rank or to many.
//
// Order of calls: encode() or assemble(), then seal(), then message(). Keeps its memory. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "comm/block.h"
#include "comm/envelope.h"
#include "comm/tag.h"
#include "comm/transport.h"

namespace modelet::comm {

class Outgoing {
 public:
  // What all its messages have in common. `lz4`: compress payloads of which LZ4 saves something.
  Outgoing(uint64_t run, uint32_t epoch, int sender, bool lz4);

  // The payload: the blocks as their codecs encode them, or blocks that are encoded already, whose bytes
  // follow each other in `bytes`.
  void encode(std::span<const OutBlock> blocks);
  void assemble(std::span<const BlockHeader> blocks, std::span<const std::byte> bytes);
  // Compresses, hashes, writes the envelope.
  void seal(Tag tag);

  // To be sent; valid until the next encode() or assemble(), the parts for as long as somebody holds it.
  const PoolPtr<Message>& message() const { return message_; }
  size_t bytes() const { return message_->envelope.size() + message_->payload.size(); }

  std::span<const BlockHeader> blocks() const { return envelope_.blocks; }
  // The payload before LZ4; valid until the next encode() or assemble().
  std::span<const std::byte> raw() const { return raw_; }
  uint64_t values() const { return values_; }  // of all blocks together

 private:
  std::span<std::byte> begin(size_t most_bytes);
  std::span<const std::byte> compressed();

  const bool lz4_;
  EnvelopeWriter writer_;
  Envelope envelope_;
  uint64_t values_ = 0;
  Pool<Message> messages_;
  PoolPtr<Message> message_;
  std::span<const std::byte> raw_;
  AlignedVector<std::byte> lz4_memory_;
};

}  // namespace modelet::comm
