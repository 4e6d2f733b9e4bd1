// ZmqTransport: messages between processes over ZeroMQ/TCP. Each rank binds one PULL socket, on which it
// receives. It has one PUSH socket for each peer, on which it sends. Connections live as long as the
// transport and reconnect by themselves.
//
// It is made in two phases, because ports are ephemeral. The constructor binds, and self() then has the
// endpoint. When somebody has exchanged the endpoints of all ranks, connect() follows. A peer may send
// before this rank has called connect(): nothing is lost.
//
// With keys (ZmqOptions::curve) each transport has a key pair of its own, which ends with it, and admits only
// the keys of the group's ranks. The key says which rank has sent a message: nothing that a peer claims counts,
// and ZeroMQ's routing ids, which a peer may choose, are not used.
//
// Without keys each message begins with a part that names its sender, "RUN/EPOCH/RANK". A message of no peer of
// this run and epoch is dropped and counted. The name proves nothing: bind beyond loopback only in a network
// whose hosts are all trusted.
//
// Memory: messages are sent from where they were encoded, and read where ZeroMQ received them. Neither this
// class nor Group copies them or allocates for them. libzmq 4.3 does the following for a message of two
// parts:
// - Sending takes a block of 40 bytes for each part, however many ranks it goes to. What is written at once
//   is gathered in a buffer of 8 KiB; the rest of a longer part is sent from where it is.
// - Receiving reads 8 KiB at once. It takes a block for each part that is not whole in these 8 KiB, and a
//   new buffer after each read whose buffer still holds parts.
// - With keys each part is encrypted from one block into another, and decrypted likewise.
// The allocation test of node_agent counts 2 to 4 allocations by libzmq for a message (short and long
// ones), and 5 to 6 with keys.
//
// A connection over which nothing arrives for ten seconds is ended and made again.
// when_connections_change() reports both. The messenger makes sure that no message is lost by that
// (comm/messaging/messenger.h).
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
  double linger_seconds = 2;               // so that the last messages (a barrier's) still leave
  int queue_messages = 256;  // per peer and direction; if more are unread, send() throws PeerError
  // Bytes of a message part. ZeroMQ closes the connection of a peer that sends more.
  size_t max_message_bytes = size_t{1} << 30;
  bool curve = false;                  // encrypted and authenticated; must be the same on all ranks
  std::shared_ptr<RateLimit> sending;  // send() waits until this allows it; counts what arrives; null: neither
};

// The address of a rank.
struct Peer {
  std::string endpoint;
  std::string public_key;  // empty: no keys
};

class ZmqTransport final : public Transport {
 public:
  // Binds. Throws like listen_at() (comm/transport/endpoint.h), and UsageError if `bind` is a wildcard
  // address, because no peer could reach this rank there.
  explicit ZmqTransport(const ZmqOptions& options = {});
  ~ZmqTransport() override;

  // The endpoint, "tcp://HOST:PORT", at which peers reach this rank, and its public key.
  const Peer& self() const;

  // Makes this transport rank `rank` of `ranks.size()` ranks. ranks[r] is self() of rank r; this rank's own
  // entry is ignored. Call it once, before send() and receive(), on their thread. Does not wait for the
  // peers. Throws Error if an endpoint is invalid, if a key is missing, or if one is given that must not
  // be.
  void connect(int rank, std::span<const Peer> ranks, uint64_t run, uint32_t epoch);

  int rank() const override;
  int size() const override;
  void send(std::span<const int> to, const RecycledPtr<Message>& message) override;
  // Also throws PeerError if a peer has refused the connection of this rank.
  bool receive(double timeout_seconds, Frame& frame) override;
  void interrupt(const std::string& reason) override;
  ConnectionHandler when_connections_change(ConnectionHandler handler) override;
  uint64_t dropped_messages() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace modelet::comm
