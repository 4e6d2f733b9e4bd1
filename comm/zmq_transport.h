// ZmqTransport: messages between processes over ZeroMQ/TCP. Each rank binds one ROUTER, on which it receives,
// and keeps one DEALER to each peer, on which it sends; connections live as long as the transport and
// reconnect by themselves.
//
// Two phases, because ports are ephemeral: construct (binds; endpoint() is then known), let somebody exchange
// the endpoints, connect(). A peer may send before this rank has called connect(); nothing is lost.
//
// A sender is known by its socket's routing id "RUN/EPOCH/RANK". A message whose id belongs to no peer of
// this run and epoch is dropped and counted. ZeroMQ refuses a second socket with the id of a connected one.
// Without keys routing ids are no proof of identity: bind beyond loopback only in a network whose hosts are
// trusted. With keys (ZmqOptions::curve) each transport has a key pair of its own, which ends with it; its
// ROUTER lets in the keys of the group's ranks alone, and a message counts only if it came with the key of
// the rank that its routing id names.
//
// Memory: messages leave from where they were encoded, and are read where ZeroMQ received them; neither this
// class nor Group copies them or allocates for them. What libzmq 4.3 does inside, for a message of two parts:
// sending, a block of 40 bytes for each part, however many ranks it goes to; what it writes at once is
// gathered in 8 KiB, and the rest of a longer part leaves from where it lies. Receiving, a block for each
// part that is not whole in the 8 KiB that it reads at once, and a new such buffer after each read that parts
// still lie in. With keys each part is encrypted from one block into another, and decrypted likewise. The
// allocation test of node_agent counts 2 to 4 of libzmq's allocations a message (short and long ones), with
// keys 5 to 6.
//
// Owns its ZeroMQ context and one I/O thread. The destructor waits at most `linger_seconds` until queued
// messages have left. Threads: as Transport.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/transport.h"

namespace modelet::comm {

struct ZmqOptions {
  std::string bind = "tcp://127.0.0.1:*";  // "*": a free port
  double linger_seconds = 2;               // so that the last messages (a barrier) still leave
  int queue_messages = 256;  // per peer and direction; more unread ones are a PeerError at the sender
  size_t max_message_bytes = size_t{1} << 30;  // per part; ZeroMQ closes the connection of who sends more
  bool curve = false;                          // encrypted and authenticated; all ranks of a group alike
};

// Where a rank is reached.
struct Peer {
  std::string endpoint;
  std::string public_key;  // empty: no keys
};

class ZmqTransport final : public Transport {
 public:
  // Binds. Throws what listen_at() does (comm/endpoint.h), UsageError if `bind` is a wildcard address, at
  // which no peer could reach this rank.
  explicit ZmqTransport(const ZmqOptions& options = {});
  ~ZmqTransport() override;

  // Where and with what key peers reach this one; the endpoint is "tcp://HOST:PORT".
  const Peer& self() const;

  // Makes this transport rank `rank` of `ranks.size()`; ranks[r] is self() of rank r (the own entry is
  // ignored). Call once, before send() and receive(), from their thread. Does not wait for the peers. Throws
  // Error for an endpoint that is none, or a key where there must be none, or the other way round.
  void connect(int rank, std::span<const Peer> ranks, uint64_t run, uint32_t epoch);

  int rank() const override;
  int size() const override;
  void send(std::span<const int> to, const PoolPtr<Message>& message) override;
  // Also throws PeerError if a peer has refused this rank's connection.
  bool receive(double timeout_seconds, Frame& frame) override;
  void interrupt(const std::string& reason) override;
  uint64_t dropped_messages() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace modelet::comm
