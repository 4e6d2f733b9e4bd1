// Control messages between agents, clients and the scheduler, and the two sockets that carry them.
// The messages are the object-API structs of control.fbs: plain values.
//
// Everything received is verified (file identifier, structure, version, size) before it is unpacked; what
// fails is dropped, counted and logged with the peer's address. A connection is ended if it brings more than
// two of the largest messages without an end, or is one too many of an address or key
// (comm/security/connections.h). Sockets belong to one thread each.
//
// The scheduler refuses peers that speak another version of the protocol, in the version that they speak:
// Refused has been the same since the first.
//
// With keys (comm/security/keys.h) connections are encrypted and both ends authenticated: the server admits
// the keys of its allow-list and says who sent a message; a peer that is refused is told why, as far as
// ZeroMQ lets it know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "comm/control/control_generated.h"
#include "comm/security/keys.h"

namespace modelet::comm::control {

// 3: runs outlive their nodes.
inline constexpr uint16_t kControlVersion = 3;
inline constexpr size_t kMaxControlBytes =
    size_t{4} << 20;  // of one message: an experiment and the owners of its modelets

// Alternatives in the order of the unions in control.fbs.
using ToSchedulerMessage =
    std::variant<RegisterT, HeartbeatT, PreparedT, RunEventT, RunDoneT, LeaveT, SubmitT, ListRunsT,
                 ListNodesT, WatchT, StopRunT, FindDataPortT, OfferT, PutChunkT, FetchManifestT, FetchChunkT,
                 WishToLeaveT, PeerMissedT, SnapshotHeldT, DrainNodeT, FindRunFilesT, FindRunLogT>;
using FromSchedulerMessage =
    std::variant<RegisteredT, AliveT, RegisterAgainT, RefusedT, PrepareT, StartT, StopT, AbortT, AcceptedT,
                 RunStatusT, RunListT, NodeListT, RunEventT, DataPortT, WantedT, ChunkStoredT, ManifestOfT,
                 ChunkT, LaterT, StableT, ReleasedT, RunFilesT, RunLogT, AdmitT>;

// A message of a program that speaks another version, of which only the version was read.
class VersionError : public FormatError {
 public:
  explicit VersionError(uint16_t theirs);
  uint16_t theirs() const { return theirs_; }

 private:
  uint16_t theirs_;
};

std::string encode(ToSchedulerMessage message);
// `version`: that of a receiver that speaks another one, and is told so.
std::string encode(FromSchedulerMessage message, uint16_t version = kControlVersion);
// Throw FormatError that says what is wrong.
ToSchedulerMessage decode_to_scheduler(std::span<const std::byte> bytes);
FromSchedulerMessage decode_from_scheduler(std::span<const std::byte> bytes);

// The address of a scheduler, and the keys to talk to it; none for a scheduler without keys.
struct SchedulerAddress {
  SchedulerAddress(std::string the_endpoint, std::optional<ClientKeys> the_keys = {})
      : endpoint(std::move(the_endpoint)), keys(std::move(the_keys)) {}
  SchedulerAddress(const char* the_endpoint) : endpoint(the_endpoint) {}

  std::string endpoint;
  std::optional<ClientKeys> keys;
};

// The same host at another port, with the same keys: the scheduler's port for data. UsageError if the
// endpoint has no port (ipc).
SchedulerAddress with_port(const SchedulerAddress& scheduler, uint16_t port);

// The key with which a server proves its identity, and the keys that it admits: those in a file (AllowList), or
// those whose identity `find` knows (kNobody: it does not). Any thread may call it.
struct ServerKeys {
  KeyPair own;
  std::filesystem::path allow_list;
  std::function<Identity(const std::string& public_key)> find = {};
};

// The traffic of a socket. Many small messages may wait for a peer. Chunks of data are large and take their
// time: at most 8 wait each way, and a connection does not count as dead because no whole message came for a
// while.
enum class Traffic { kMessages, kChunks };

// The scheduler's end.
class ServerSocket {
 public:
  // Binds; the system chooses a port for "*". Throws what listen_at() does (comm/transport/endpoint.h), and
  // UsageError for a wrong allow-list.
  explicit ServerSocket(const std::string& endpoint, const std::optional<ServerKeys>& keys = {},
                        Traffic traffic = Traffic::kMessages);
  ~ServerSocket();

  struct Received {
    std::string peer;     // routing id of the connection; opaque bytes
    Identity sender;      // as the allow-list has it now
    std::string address;  // of the peer's machine, as the connection has it
    ToSchedulerMessage message;
  };
  // The next well-formed message, of all peers in turn; nothing if none came within `timeout_seconds`, or
  // when `wake_fd` became readable.
  std::optional<Received> receive(double timeout_seconds, int wake_fd = -1);
  enum class Sent {
    kQueued,
    kFull,  // the peer has not read for too long: the message is dropped
    kGone   // so is the peer's connection
  };
  Sent send(const std::string& peer, FromSchedulerMessage message);

  const std::string& endpoint() const;  // as bound, with the actual port

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The end of an agent or client. Reconnects by itself; the scheduler sees each connection as a new peer.
class ClientSocket {
 public:
  // Throws what connect_to() does (comm/transport/endpoint.h).
  explicit ClientSocket(const SchedulerAddress& scheduler, Traffic traffic = Traffic::kMessages);
  ~ClientSocket();

  // Throws Error if the scheduler refuses this client for good: its key is not known there, only one of both
  // uses keys, or it speaks another version of the protocol.
  std::optional<FromSchedulerMessage> receive(double timeout_seconds, int wake_fd = -1);
  // False if there is no connection now: nothing is queued for a scheduler that is away.
  bool send(ToSchedulerMessage message);
  // Number of connections so far, as far as receive() has heard: messages sent before the last one began may
  // be lost, those sent over it are not.
  uint64_t connections() const;
  // The reason why the last attempt to connect failed, if it failed during the handshake; empty once
  // connected.
  const std::string& trouble() const;
  // Waits until what was sent has left, at most `timeout_seconds`, and closes. No other call may follow.
  void close(double timeout_seconds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace modelet::comm::control
