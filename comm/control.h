// Control messages between agents, clients and the scheduler, and the two sockets that carry them.
// The messages are the object-API structs of control.fbs: plain values.
//
// Everything received is verified (file identifier, structure, version, size) before it is unpacked; what
// fails is dropped, counted and logged with the peer's address. Sockets belong to one thread each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "comm/control_generated.h"

namespace modelet::comm::control {

inline constexpr uint16_t kControlVersion = 1;
inline constexpr size_t kMaxControlBytes = size_t{4}
                                           << 20;  // of one message: an experiment and the owners of its cut

// Alternatives in the order of the unions in control.fbs.
using ToSchedulerMessage = std::variant<RegisterT, HeartbeatT, PreparedT, RunEventT, RunDoneT, LeaveT,
                                        SubmitT, ListRunsT, ListNodesT, WatchT, StopRunT>;
using FromSchedulerMessage =
    std::variant<RegisteredT, AliveT, RegisterAgainT, RefusedT, PrepareT, StartT, StopT, AbortT, AcceptedT,
                 RunStatusT, RunListT, NodeListT, RunEventT>;

std::string encode(ToSchedulerMessage message);
std::string encode(FromSchedulerMessage message);
// Throw FormatError that says what is wrong.
ToSchedulerMessage decode_to_scheduler(std::span<const std::byte> bytes);
FromSchedulerMessage decode_from_scheduler(std::span<const std::byte> bytes);

// True if nobody outside this machine can reach the endpoint ("tcp://127.0.0.1:5570", "tcp://[::1]:*",
// "ipc://...").
bool is_loopback(std::string_view endpoint);
// UsageError if `endpoint` is reachable from outside and `insecure` was not given. `what` names the socket.
void require_loopback(std::string_view endpoint, bool insecure, std::string_view what);

// The scheduler's end.
class ServerSocket {
 public:
  // Binds; a port "*" is chosen by the system. Throws Error (address in use, ...).
  explicit ServerSocket(const std::string& endpoint);
  ~ServerSocket();

  struct Received {
    std::string peer;  // routing id of the connection; opaque bytes
    ToSchedulerMessage message;
  };
  // Next well-formed message; nothing if none came within `timeout_seconds`, or when `wake_fd` became
  // readable.
  std::optional<Received> receive(double timeout_seconds, int wake_fd = -1);
  // False if the peer's connection is gone or it has not read for too long.
  bool send(const std::string& peer, FromSchedulerMessage message);

  const std::string& endpoint() const;  // as bound, with the actual port

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// An agent's or client's end. Reconnects by itself; the scheduler sees each connection as a new peer.
class ClientSocket {
 public:
  explicit ClientSocket(const std::string& endpoint);
  ~ClientSocket();

  std::optional<FromSchedulerMessage> receive(double timeout_seconds, int wake_fd = -1);
  // False if there is no connection now: nothing is queued for a scheduler that is away.
  bool send(ToSchedulerMessage message);
  // Waits until what was sent has left, at most `timeout_seconds`, and closes. No other call may follow.
  void close(double timeout_seconds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace modelet::comm::control
