// CURVE on ZeroMQ sockets: options, the handler that decides for ZeroMQ who may connect (ZAP, RFC 27), and
// why a handshake failed. For the files of comm/ that have sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "base/system/log.h"
#include "base/system/wake_event.h"
#include "comm/security/connections.h"
#include "comm/security/keys.h"

namespace modelet::comm {

// Call it before bind() or connect(). sender_key() returns the key with which a received message was sent.
void use_curve_server(zmq::socket_t& socket, const KeyPair& own);
void use_curve_client(zmq::socket_t& socket, const KeyPair& own, const std::string& server_key);

// The authenticated public key of the connection that a message came over; empty without CURVE. Valid as long
// as the message.
std::string_view sender_key(zmq::message_t& message);

// Address of the connection that a message came over.
std::string peer_address(zmq::message_t& message);

// Reports how the handshakes of a socket end. Belongs to one thread; make it before the socket connects or
// binds.
class HandshakeMonitor {
 public:
  enum class Side { kServer, kClient };
  HandshakeMonitor(zmq::context_t& context, zmq::socket_t& socket, Side side);

  enum class Kind {
    kAccepted,       // server only: a connection, of which nothing else is known yet
    kEnded,          // so did a connection whose handshake had not failed
    kSucceeded,      // client only
    kRefused,        // client only: the server does not accept its key. Final, ZeroMQ does not try again
    kOtherSecurity,  // one side uses CURVE, the other does not. Final at the client
    kBroken,         // no handshake; so a server sees a client that expects another server's key
    kClosed  // the other side closed the connection; so a client sees that the server's key is another
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
  std::optional<Kind> failed_;  // reported when its connection closes, which tells the descriptor
};

// Decides, on a thread of its own, whether a key may connect to the server socket of a context, logs who was
// refused and why, and enforces the limits on connections. Make it before the socket binds and let it live
// longer: if nobody answers, ZeroMQ lets everybody in.
class GateKeeper {
 public:
  // `what` names the server in the log.
  GateKeeper(zmq::context_t& context, zmq::socket_t& server, std::string what,
             const ConnectionLimits& limits);
  GateKeeper(const GateKeeper&) = delete;
  GateKeeper& operator=(const GateKeeper&) = delete;
  ~GateKeeper();

  // The reason why a key may not connect; empty if it may. Called on the gate keeper's thread.
  using Judge = std::function<std::string(const std::string& public_key)>;
  // Handshakes wait until it is called. On a socket without CURVE nobody is judged.
  void open(Judge judge);

  // If unread bytes are limited: a message was read. Called on the socket's thread.
  void has_read(zmq::message_t& last_part, size_t bytes);

 private:
  void work();
  void answer_request();
  void note(const HandshakeMonitor::Event& event);

  const std::string what_;
  zmq::socket_t requests_;
  HandshakeMonitor monitor_;
  Connections connections_;
  WakeEvent stop_;
  Judge judge_;
  LogLimit refusals_, failures_;
  std::thread thread_;
};

}  // namespace modelet::comm
