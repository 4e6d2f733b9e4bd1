// Transport: moves whole messages between the ranks of one group. It has two implementations: ZeroMQ between
// processes (zmq.h) and queues between threads (inproc.h). It knows bytes and ranks, not layers.
//
// Memory: a message is encoded once, into recycled memory, and sent from there to one rank or to many. A
// received message is read where it was received. A transport copies neither, and allocates nothing once
// the pools have as many objects as are under way at once. zmq.h says what ZeroMQ itself copies and
// allocates.
//
// Thread safety: send() and receive() belong to one thread (the training thread). Any thread may call
// interrupt().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/array/scratch.h"
#include "comm/transport/recycler.h"

namespace modelet::comm {

// A message to send. It must not be changed after it was given to a transport. The transport lets go of it
// when it has left, perhaps on another thread.
class Message final : public Recyclable {
 public:
  std::span<const std::byte> envelope, payload;  // views of the memory below

  Scratch<std::byte> envelope_memory, payload_memory;  // hold the two parts
};

// One received message: its two parts, unchecked.
struct Frame {
  int from = -1;                  // rank of the sender, as the transport knows it
  RecycledPtr<Recyclable> owner;  // keeps the parts alive
  std::span<const std::byte> envelope;
  std::span<const std::byte> payload;

  size_t bytes() const { return envelope.size() + payload.size(); }
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Queues a message for each of the ranks `to`, in this order, and does not wait for them. Throws
  // PeerError if the queue of a rank is full because it has not read for too long. The ranks after that one
  // are then sent nothing.
  virtual void send(std::span<const int> to, const RecycledPtr<Message>& message) = 0;
  // The next message from any peer. Returns false if none came within `timeout_seconds`. Throws Interrupted
  // after interrupt().
  virtual bool receive(double timeout_seconds, Frame& frame) = 0;
  // Wakes the thread that is in receive() (within 50 ms). That call and all later ones throw
  // Interrupted(reason).
  virtual void interrupt(const std::string& reason) = 0;
  // What happened to the connection over which this rank sends to a peer. When it has ended, messages under
  // way may be lost. It may come back by itself.
  enum class Connection { kEnded, kBack };
  using ConnectionHandler = std::function<void(int rank, Connection what)>;
  // Sets the function that receive() and send() call when that happens. `heard` may call send(). Returns
  // the previous function.
  virtual ConnectionHandler when_connections_change(ConnectionHandler handler) {
    static_cast<void>(handler);
    return {};
  }
  // The number of messages that were dropped because their sender is no rank of this group.
  virtual uint64_t dropped_messages() const { return 0; }
};

}  // namespace modelet::comm
