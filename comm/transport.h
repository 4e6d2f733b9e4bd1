// Transport: moves whole messages between the ranks of one group. Two implementations behind it: ZeroMQ
// between processes (zmq_transport.h) and queues between threads (inproc_transport.h). It knows spans and
// ranks, no layers.
//
// Memory: a message is encoded once into memory of a pool and sent from there, to one rank or to many; what
// was received is read where it came to lie. Neither is copied here, and nothing is allocated once the pools
// have grown to what is under way at once. zmq_transport.h says what ZeroMQ itself copies and allocates.
//
// Thread safety: send() and receive() belong to one thread (the training thread); interrupt() may be called
// from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/aligned.h"
#include "comm/pool.h"

namespace modelet::comm {

// A message to send. Not to be changed once it was given to a transport, which lets go of it when it has
// left, perhaps on another thread.
class Message final : public Pooled {
 public:
  std::span<const std::byte> envelope, payload;  // in the memory below

  // The parts lie in here; grows, never shrinks.
  AlignedVector<std::byte> envelope_memory, payload_memory;
};

// One received message: its two parts as they came, unchecked.
struct Frame {
  int from = -1;          // rank, as the transport knows it
  PoolPtr<Pooled> owner;  // keeps the parts alive
  std::span<const std::byte> envelope;
  std::span<const std::byte> payload;

  size_t bytes() const { return envelope.size() + payload.size(); }
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Queues a message for each of the ranks `to`, in their order; does not wait for them. Throws PeerError if
  // a rank's queue is full (it has not read for too long): those after it were sent nothing.
  virtual void send(std::span<const int> to, const PoolPtr<Message>& message) = 0;
  // Next message of any peer. Returns false if none came within `timeout_seconds`. Throws Interrupted after
  // interrupt().
  virtual bool receive(double timeout_seconds, Frame& frame) = 0;
  // Wakes the owner thread (within 50 ms): its current and all later receive() throw Interrupted(reason).
  virtual void interrupt(const std::string& reason) = 0;
  // Messages thrown away because their sender is no rank of this group.
  virtual uint64_t dropped_messages() const { return 0; }
};

}  // namespace modelet::comm
