// Outgoing: the message that a rank is about to send. Its blocks are encoded once, into recycled memory
// (comm/transport/recycler.h), and sent from there to one rank or to many.
//
// Order of calls: encode() or assemble(), then seal(), then message(). Reuses its memory. Used by one
// thread.
//
// Unconfirmed: messages that were sent and may have to be sent again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/array/scratch.h"
#include "comm/messaging/block.h"
#include "comm/transport/transport.h"
#include "comm/wire/envelope.h"
#include "comm/wire/tag.h"

namespace modelet::comm {

class Outgoing {
 public:
  // The arguments hold for all messages of this object. `lz4`: compress payloads that LZ4 makes smaller.
  Outgoing(uint64_t run, uint32_t epoch, int sender, bool lz4);

  // Make the payload. encode() lets each block's codec encode it. assemble() takes blocks that are already
  // encoded: their bytes follow each other in `bytes`.
  void encode(std::span<const OutBlock> blocks);
  void assemble(std::span<const BlockHeader> blocks, std::span<const std::byte> bytes);
  // Compresses and hashes the payload, and writes the envelope. `needs_from`: as in Envelope.
  void seal(Tag tag, Tag needs_from);

  // The message, ready to be sent. The reference is valid until the next encode() or assemble(); a copy of
  // it keeps the message's parts alive.
  const RecycledPtr<Message>& message() const { return message_; }
  size_t bytes() const { return message_->envelope.size() + message_->payload.size(); }

  std::span<const BlockHeader> blocks() const { return envelope_.blocks; }
  // The payload without LZ4; valid until the next encode() or assemble().
  std::span<const std::byte> raw() const { return raw_; }
  // Bytes of all blocks together without any encoding: matrices as fp32.
  uint64_t plain_bytes() const { return plain_bytes_; }

 private:
  std::span<std::byte> begin(size_t most_bytes);
  std::span<const std::byte> compressed();

  const bool lz4_;
  EnvelopeWriter writer_;
  Envelope envelope_;
  uint64_t plain_bytes_ = 0;
  Recycler<Message> messages_;
  RecycledPtr<Message> message_;
  std::span<const std::byte> raw_;
  Scratch<std::byte> lz4_memory_;
};

// The messages to each peer that may not have arrived. A peer's own messages say which ones it no longer
// needs (Envelope::needs_from), and those are dropped here. Ranks wait for each other in every step, so
// this holds the messages of about one step. It shares their memory with the Outgoing that made them, and
// reuses its own. Used by one thread.
class Unconfirmed {
 public:
  struct Sent {
    Tag tag;
    RecycledPtr<Message> message;
  };

  explicit Unconfirmed(size_t peers) : sent_(peers) {}

  void add(int peer, Tag tag, const RecycledPtr<Message>& message);
  // The peer needs nothing before `tag`.
  void confirm(int peer, Tag tag);
  // The messages to a peer in the order of their tags, which is the order in which they were sent.
  std::span<const Sent> to(int peer) const { return sent_[static_cast<size_t>(peer)]; }

 private:
  std::vector<std::vector<Sent>> sent_;  // [size]
};

}  // namespace modelet::comm
