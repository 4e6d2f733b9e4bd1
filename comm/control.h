// Control messages between agents, clients and the scheduler, and the two sockets that carry them.
// The messages are the object-API structs of control.fbs: plain values.
//
// Everything received is verified (file identifier, structure, version, size) before it is unpacked; what
// fails is dropped, counted and logged with the peer's address. Sockets belong to one thread each.
//
// Who speaks another version of the protocol than the scheduler is refused by it, in the version he speaks:
// Refused has been the same since the first.
//
// With keys (comm/keys.h) connections are encrypted and both ends authenticated: the server lets in whom its
// allow-list names and tells who sent a message; who is refused is told why, as far as ZeroMQ lets it know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "comm/control_generated.h"
#include "comm/keys.h"

namespace modelet::comm::control {

// 2: agents of a run must also speak version 2 of the wire between ranks (comm/envelope.h).
inline constexpr uint16_t kControlVersion = 2;
inline constexpr size_t kMaxControlBytes = size_t{4}
                                           << 20;  // of one message: an experiment and the owners of its cut

// Alternatives in the order of the unions in control.fbs.
using ToSchedulerMessage =
    std::variant<RegisterT, HeartbeatT, PreparedT, RunEventT, RunDoneT, LeaveT, SubmitT, ListRunsT,
                 ListNodesT, WatchT, StopRunT, FindDataPortT, OfferT, PutChunkT, FetchManifestT, FetchChunkT>;
using FromSchedulerMessage =
    std::variant<RegisteredT, AliveT, RegisterAgainT, RefusedT, PrepareT, StartT, StopT, AbortT, AcceptedT,
                 RunStatusT, RunListT, NodeListT, RunEventT, DataPortT, WantedT, ChunkStoredT, ManifestOfT,
                 ChunkT, LaterT>;

// A message of a program that speaks another version: nothing else of it was read.
class VersionError : public FormatError {
 public:
  explicit VersionError(uint16_t theirs);
  uint16_t theirs() const { return theirs_; }

 private:
  uint16_t theirs_;
};

std::string encode(ToSchedulerMessage message);
// `version`: that of a receiver that speaks another one, who is told so.
std::string encode(FromSchedulerMessage message, uint16_t version = kControlVersion);
// Throw FormatError that says what is wrong.
ToSchedulerMessage decode_to_scheduler(std::span<const std::byte> bytes);
FromSchedulerMessage decode_from_scheduler(std::span<const std::byte> bytes);

// Where a scheduler is, and the keys to talk to it; none for one without.
struct SchedulerAddress {
  SchedulerAddress(std::string the_endpoint, std::optional<ClientKeys> the_keys = {})
      : endpoint(std::move(the_endpoint)), keys(std::move(the_keys)) {}
  SchedulerAddress(const char* the_endpoint) : endpoint(the_endpoint) {}

  std::string endpoint;
  std::optional<ClientKeys> keys;
};

// The same host at another port, with the same keys: where the scheduler's data is. UsageError if the
// endpoint has no port (ipc).
SchedulerAddress with_port(const SchedulerAddress& scheduler, uint16_t port);

// What a scheduler proves itself with, and whom it lets in.
struct ServerKeys {
  KeyPair own;
  std::filesystem::path allow_list;
};

// What a socket carries. Of small messages many may wait for a peer; chunks of data are large and take their
// time: at most 8 wait each way, and a connection that brings nothing whole for a while is not taken for a
// dead one.
enum class Traffic { kMessages, kChunks };

// The scheduler's end.
class ServerSocket {
 public:
  // Binds; a port "*" is chosen by the system. Throws what listen_at() does (comm/endpoint.h), UsageError for
  // a wrong allow-list.
  explicit ServerSocket(const std::string& endpoint, const std::optional<ServerKeys>& keys = {},
                        Traffic traffic = Traffic::kMessages);
  ~ServerSocket();

  struct Received {
    std::string peer;  // routing id of the connection; opaque bytes
    Identity sender;   // as the allow-list has it now
    ToSchedulerMessage message;
  };
  // Next well-formed message, of all peers in turn; nothing if none came within `timeout_seconds`, or when
  // `wake_fd` became readable.
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

// An agent's or client's end. Reconnects by itself; the scheduler sees each connection as a new peer.
class ClientSocket {
 public:
  // Throws what connect_to() does (comm/endpoint.h).
  explicit ClientSocket(const SchedulerAddress& scheduler, Traffic traffic = Traffic::kMessages);
  ~ClientSocket();

  // Throws Error if the scheduler refuses this client for good: its key is not known there, one of both
  // uses keys and the other does not, or it speaks another version of the protocol.
  std::optional<FromSchedulerMessage> receive(double timeout_seconds, int wake_fd = -1);
  // False if there is no connection now: nothing is queued for a scheduler that is away.
  bool send(ToSchedulerMessage message);
  // How many there have been, as far as receive() has heard: what was sent before the last one began may be
  // lost, what was sent over it is not.
  uint64_t connections() const;
  // Why the last attempt to connect failed, if it did so during the handshake; empty once connected.
  const std::string& trouble() const;
  // Waits until what was sent has left, at most `timeout_seconds`, and closes. No other call may follow.
  void close(double timeout_seconds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace modelet::comm::control
