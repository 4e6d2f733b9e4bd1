// Transport: moves whole messages between the ranks of one group. Two implementations behind it: ZeroMQ
// between processes (zmq_transport.h) and queues between threads (inproc_transport.h). It knows spans and
// ranks, no layers.
//
// Thread safety: send() and receive() belong to one thread (the training thread); interrupt() may be called
// from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace modelet::comm {

// One received message: its two parts as they came, unchecked, both owned here.
struct Frame {
  int from = -1;                      // rank, as the transport knows it
  std::shared_ptr<const void> owner;  // keeps the parts alive (zero-copy receive)
  std::span<const std::byte> envelope;
  std::span<const std::byte> payload;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Queues a message; does not wait for the peer. The bytes are copied or sent before it returns.
  // Throws PeerError if the peer's queue is full (it has not read for too long).
  virtual void send(int to, std::span<const std::byte> envelope, std::span<const std::byte> payload) = 0;
  // Next message of any peer. Returns false if none came within `timeout_seconds`. Throws Interrupted after
  // interrupt().
  virtual bool receive(double timeout_seconds, Frame& frame) = 0;
  // Wakes the owner thread (within 50 ms): its current and all later receive() throw Interrupted(reason).
  virtual void interrupt(const std::string& reason) = 0;
  // Messages thrown away because their sender is no rank of this group.
  virtual uint64_t dropped_messages() const { return 0; }
};

}  // namespace modelet::comm
