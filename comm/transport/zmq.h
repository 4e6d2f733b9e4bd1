// ZmqTransport: messages between processes over ZeroMQ/TCP. Each rank binds one ROUTER socket, on which it
// receives, and has one DEALER socket for each peer, on which it sends. Connections live as long as the
// transport and reconnect by themselves.
//
// It is made in two phases, because ports are ephemeral: construct it (which binds; endpoint() is then
// known), let somebody exchange the endpoints, then connect(). A peer may send before this rank has called
// connect(); nothing is lost.
//
// A sender is known by the routing id of its socket, "RUN/EPOCH/RANK". A message whose id belongs to no peer
// of this run and epoch is dropped and counted. A later connection with the id of an earlier one takes its
// place: this side may not have noticed yet that the earlier one has ended. Without keys, routing ids are no
// proof of identity: bind beyond loopback only in a network whose hosts are trusted. With keys
// (ZmqOptions::curve) each transport has a key pair of its own, which ends with it. Its ROUTER admits only the
// keys of the group's ranks, and a message counts only if it came with the key of the rank that its routing id
// names.
//
// Memory: messages leave from where they were encoded, and are read where ZeroMQ received them; neither this
// class nor Group copies them or allocates for them. For a message of two parts libzmq 4.3 does the
// following. Sending takes a block of 40 bytes for each part, however many ranks it goes to. What is written
// at once is gathered in 8 KiB; the rest of a longer part leaves from where it lies. Receiving takes a block
// for each part that is not whole in the 8 KiB that are read at once, and a new such buffer after each read
// whose buffer still holds parts. With keys each part is encrypted from one block into another, and decrypted
// likewise. The allocation test of node_agent counts 2 to 4 allocations by libzmq a message (short and long
// ones), with keys 5 to 6.
//
// A connection over which nothing comes through for ten seconds ends, and is made again. when_connections_change()
// tells of both; what it takes to lose no message is the messenger's matter.
//
// Owns its ZeroMQ context and one I/O thread. The destructor waits at most `linger_seconds` until queued
// messages have left. Threads: as for Transport.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "comm/transport/rate_limit.h"
#include "comm/transport/transport.h"

namespace modelet::comm {

struct ZmqOptions {
  std::string bind = "tcp://127.0.0.1:*";  // "*": a free port
  double linger_seconds = 2;               // so that the last messages (a barrier) still leave
  int queue_messages = 256;  // per peer and direction; more unread ones are a PeerError at the sender
  size_t max_message_bytes = size_t{1}
                             << 30;    // per part; ZeroMQ closes the connection of a peer that sends more
  bool curve = false;                  // encrypted and authenticated; all ranks of a group alike
  std::shared_ptr<RateLimit> sending;  // send() waits for it; null: it does not wait
};

// The address of a rank.
struct Peer {
  std::string endpoint;
  std::string public_key;  // empty: no keys
};

class ZmqTransport final : public Transport {
 public:
  // Binds. Throws as listen_at() does (comm/transport/endpoint.h), and UsageError if `bind` is a wildcard
  // address, because no peer could reach this rank there.
  explicit ZmqTransport(const ZmqOptions& options = {});
  ~ZmqTransport() override;

  // The endpoint, "tcp://HOST:PORT", and the key at which peers reach this rank.
  const Peer& self() const;

  // Makes this transport rank `rank` of `ranks.size()`; ranks[r] is self() of rank r (the own entry is
  // ignored). Call it once, before send() and receive(), from their thread. Does not wait for the peers.
  // Throws Error if an endpoint is invalid, or a key is missing or given where there must be none.
  void connect(int rank, std::span<const Peer> ranks, uint64_t run, uint32_t epoch);

  int rank() const override;
  int size() const override;
  void send(std::span<const int> to, const PoolPtr<Message>& message) override;
  // Also throws PeerError if a peer has refused the connection of this rank.
  bool receive(double timeout_seconds, Frame& frame) override;
  void interrupt(const std::string& reason) override;
  Heard when_connections_change(Heard heard) override;
  uint64_t dropped_messages() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace modelet::comm
