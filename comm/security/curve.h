// CURVE on ZeroMQ sockets: the options, the handler that decides for ZeroMQ who may connect (ZAP, RFC 27),
// and the reasons why a handshake failed. For the files of comm/ that have sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "base/system/clock.h"
#include "base/system/log.h"
#include "base/system/wake_event.h"
#include "comm/security/connections.h"
#include "comm/security/keys.h"

namespace modelet::comm {

// Set the socket's keys. Call them before bind() or connect(). On a server, sender_of() then returns the key
// with which a received message was sent.
void use_curve_server(zmq::socket_t& socket, const KeyPair& own);
void use_curve_client(zmq::socket_t& socket, const KeyPair& own, const std::string& server_key);

// What an authenticator noted of the connection on which a message came. Nothing in it was claimed by the peer.
struct Sender {
  std::string_view key;  // its authenticated public key; empty without CURVE. Valid as long as the message
  uint64_t number =
      0;  // of the connection: no other one of the socket has it, and later ones have larger ones
};
Sender sender_of(zmq::message_t& message);

// The IP address of the peer that sent a message.
std::string peer_address(zmq::message_t& message);

// Reports how the handshakes of a socket end. Belongs to one thread. Make it before the socket connects or
// binds.
class HandshakeMonitor {
 public:
  enum class Side { kServer, kClient };
  HandshakeMonitor(zmq::context_t& context, zmq::socket_t& socket, Side side);

  enum class Kind {
    kAccepted,   // server only: a new connection, of which nothing else is known yet
    kEnded,      // a connection has ended whose handshake had not failed
    kSucceeded,  // client only
    kRefused,  // client only: the server does not accept this client's key. Final: ZeroMQ does not try again
    kOtherSecurity,  // one side uses CURVE, the other does not. Final for the client
    kBroken,         // no valid handshake. So a server sees a client that expects another server key
    kClosed          // closed by the other side. So a client sees a server that has another key
  };
  struct Event {
    Kind kind = Kind::kClosed;
    int descriptor = -1;  // of the connection; server only
  };
  // The next event, if there is one.
  std::optional<Event> next();
  void* handle() { return socket_.handle(); }  // readable when there may be an event

 private:
  std::optional<Event> interpret(uint16_t event, uint32_t value);

  const Side side_;
  zmq::socket_t socket_;
  bool connected_ = false;      // client only
  std::optional<Kind> failed_;  // reported when the connection closes: only that event has the descriptor
};

// Decides on a thread of its own whether a key may connect to the server socket of a context, and gives each
// connection a number (sender_of). It logs who was refused and why, and enforces the limits on connections. Make
// it before the socket binds, and let it live longer than the socket: if nobody answers, ZeroMQ lets everybody
// in.
//
// A key may make only so many connections a second, so that nobody can try many of the routing ids that ZeroMQ
// gives to connections (comm/control/control.cc). A client that comes too often tries again by itself.
class Authenticator {
 public:
  // `what` names the server in the log.
  Authenticator(zmq::context_t& context, zmq::socket_t& server, std::string what);
  Authenticator(const Authenticator&) = delete;
  Authenticator& operator=(const Authenticator&) = delete;
  ~Authenticator();

  struct Verdict {
    std::string why_not;       // a key may not connect; empty if it may
    bool is_stranger = false;  // all of these share the limits of one key
  };
  // Called on the authenticator's thread.
  using Judge = std::function<Verdict(const std::string& public_key)>;
  // Starts to answer: handshakes wait until this call. On a socket without CURVE nobody is refused.
  void open(const ConnectionLimits& limits, Judge judge);

  // Reports that a message was read. Called after open(), on the socket's thread, as those below.
  void has_read(zmq::message_t& last_part, size_t bytes, bool is_stranger = false);
  // As in Connections, by the number of the connection.
  bool is_open(uint64_t number) const { return connections_->is_open(number); }
  void queues(uint64_t number, int64_t bytes) { connections_->queued(number, bytes); }
  // Shuts the connection on which a message came, of which has_read() was not told.
  void refuse(zmq::message_t& message, const std::string& why);
  // How many connections were let in so far.
  uint64_t let_in() const { return let_in_; }

 private:
  // How many connections a key may make now. It grows with time.
  struct Room {
    double left = 0, at = 0;
  };

  void work();
  void answer_request();
  bool has_room(const std::string& key);
  void note(const HandshakeMonitor::Event& event);

  const std::string what_;
  zmq::socket_t requests_;
  HandshakeMonitor monitor_;
  std::optional<Connections> connections_;  // from open() on
  WakeEvent stop_;
  ConnectionLimits limits_;
  Judge judge_;
  SteadyClock clock_;
  std::map<std::string, Room> rooms_;  // by key; kStrangers: of all that are not known
  std::atomic<uint64_t> let_in_{0};
  LogLimit refusals_, failures_;
  std::thread thread_;
};

}  // namespace modelet::comm
