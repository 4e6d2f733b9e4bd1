// Control messages between agents, clients and the scheduler, and the two sockets that carry them. The
// messages are the object-API structs of control.fbs: plain values.
//
// A received message is verified (file identifier, structure, version, size) before it is unpacked. A
// message that fails is dropped, counted and logged with the peer's address. A connection is ended if it
// sends more than two of the largest messages without completing one, if more than eight of the largest wait
// because it does not read, or if its address or key has too many connections
// (comm/security/connections.h). Each socket belongs to one thread.
//
// Programs of neighbouring releases work together. A message carries the version in which it got its present meaning,
// and a receiver accepts all from kOldestControlVersion to kControlVersion. So a newer program is refused only what the
// older one does not know. The answer to another version is Refused in the peer's version: the layout of Refused has
// been the same since the first version.
//
// With keys (comm/security/keys.h) connections are encrypted, and both ends are authenticated. The server
// admits the keys of its allow-list and reports who sent a message. A refused peer is told the reason, as
// far as ZeroMQ makes it known. A server may also hear strangers (ServerKeys): their messages come with the role kNobody,
// are small, and all strangers together have as many connections as one key.
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

// 9: a run may consist of tasks. 10: agents that wait to be let in, invitations, traces.
inline constexpr uint16_t kControlVersion = 10, kOldestControlVersion = 9;
// Bytes of one message. The largest ones hold an experiment and the owners of its modelets.
inline constexpr size_t kMaxControlBytes = size_t{4} << 20;
// Bytes of the first message of a connection to a server that hears strangers.
inline constexpr size_t kMaxFirstMessage = size_t{1} << 20;

// Alternatives in the order of the unions in control.fbs.
using ToSchedulerMessage =
    std::variant<RegisterT, HeartbeatT, PreparedT, RunEventT, RunDoneT, LeaveT, SubmitT, ListRunsT,
                 ListNodesT, WatchT, StopRunT, FindDataPortT, OfferT, PutChunkT, FetchManifestT, FetchChunkT,
                 LeaveRequestT, PeerMissedT, SnapshotHeldT, DrainNodeT, FindRunFilesT, FindRunLogT,
                 ApproveNodeT, EnrolT, TraceRunT>;
using FromSchedulerMessage =
    std::variant<RegisteredT, AliveT, RegisterAgainT, RefusedT, PrepareT, StartT, StopT, AbortT, AcceptedT,
                 RunStatusT, RunListT, NodeListT, RunEventT, DataPortT, WantedT, ChunkStoredT, ManifestOfT,
                 ChunkT, LaterT, StableT, ReleasedT, RunFilesT, RunLogT, AdmitT, PendingT, EnrolledT,
                 TraceT>;

// A message of a version that this program does not accept. Only its version was read.
class VersionError : public FormatError {
 public:
  explicit VersionError(uint16_t theirs);
  uint16_t theirs() const { return theirs_; }

 private:
  uint16_t theirs_;
};

std::string encode(ToSchedulerMessage message);
// `version`: for a receiver that accepts only this one, to tell it so; 0: that of the message.
std::string encode(FromSchedulerMessage message, uint16_t version = 0);
// Throw FormatError, which says what is wrong.
ToSchedulerMessage decode_to_scheduler(std::span<const std::byte> bytes);
FromSchedulerMessage decode_from_scheduler(std::span<const std::byte> bytes);

// The address of a scheduler, and the keys to talk to it; no keys for a scheduler that uses none.
struct SchedulerAddress {
  SchedulerAddress(std::string the_endpoint, std::optional<ClientKeys> the_keys = {})
      : endpoint(std::move(the_endpoint)), keys(std::move(the_keys)) {}
  SchedulerAddress(const char* the_endpoint) : endpoint(the_endpoint) {}

  std::string endpoint;
  std::optional<ClientKeys> keys;
};

// The same host with another port and the same keys: the scheduler's port for data. Throws UsageError if
// the endpoint has no port (ipc).
SchedulerAddress with_port(const SchedulerAddress& scheduler, uint16_t port);

// The key with which a server proves its identity, and the keys that it admits. These are the keys of a
// file (AllowList) or, if `find` is given, those for which `find` does not return kNobody. Any thread may
// call `find`. If the server hears strangers, other keys may connect as well.
struct ServerKeys {
  KeyPair own;
  std::filesystem::path allow_list;
  std::function<Identity(const std::string& public_key)> find = {};
  bool hears_strangers = false;
};

// The traffic of a socket. kMessages: many small messages may wait for a peer. kChunks: messages are large
// and take a long time, so at most 8 wait in each direction, and a connection may go longer without a whole
// message before it counts as dead.
enum class Traffic { kMessages, kChunks };

// The scheduler's end.
class ServerSocket {
 public:
  // Binds; the system chooses a port for "*". Throws like listen_at() (comm/transport/endpoint.h), and
  // UsageError for a wrong allow-list.
  explicit ServerSocket(const std::string& endpoint, const std::optional<ServerKeys>& keys = {},
                        Traffic traffic = Traffic::kMessages);
  ~ServerSocket();

  struct Received {
    std::string peer;     // names the connection, and no other one; opaque bytes
    Identity sender;      // what the allow-list says now
    std::string address;  // IP address of the other end of the connection
    ToSchedulerMessage message;
    size_t bytes = 0;  // of the message as it came
  };
  // The next well-formed message; peers take turns. Returns nothing if none came within `timeout_seconds`,
  // or when `wake_fd` became readable.
  std::optional<Received> receive(double timeout_seconds, int wake_fd = -1);
  enum class Sent {
    kQueued,
    kFull,  // the peer has not read for too long, or the message is too large for it: it is dropped
    kGone   // the peer's connection is gone, and the message with it
  };
  // A message larger than the peer would accept is logged. If it answers a question, the peer gets a Refused
  // in its place, which says so.
  Sent send(const std::string& peer, FromSchedulerMessage message);

  const std::string& endpoint() const;  // as bound, with the actual port

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The client's or agent's end. It reconnects by itself; the scheduler sees each connection as a new peer.
class ClientSocket {
 public:
  // Throws like connect_to() (comm/transport/endpoint.h).
  explicit ClientSocket(const SchedulerAddress& scheduler, Traffic traffic = Traffic::kMessages);
  ~ClientSocket();

  // Throws Error if the scheduler refuses this client for good: its key is not known there, only one of the
  // two sides uses keys, or the scheduler speaks another version of the protocol.
  std::optional<FromSchedulerMessage> receive(double timeout_seconds, int wake_fd = -1);
  // False if there is no connection now: nothing is queued for a scheduler that is away.
  bool send(ToSchedulerMessage message);
  // The number of connections so far that receive() has noticed. Messages sent before the last connection
  // began may be lost; those sent over it are not.
  uint64_t connections() const;
  // Spreads what is sent evenly over time, at most so many bytes a second (0: no limit), so that messages of
  // others on the same link do not wait behind a whole chunk. From the next message on that arrives; where the
  // system cannot do it, nothing changes.
  void pace(double bytes_per_second);
  // If the last attempt to connect failed during the handshake, the reason; empty once connected.
  const std::string& trouble() const;
  // Waits until all sent messages have left, at most `timeout_seconds`, and closes the socket. No other
  // call may follow.
  void close(double timeout_seconds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace modelet::comm::control
