// CURVE on ZeroMQ sockets: options, the handler that ZeroMQ asks whom to let in (ZAP, RFC 27), and why a
// handshake failed. For the files of comm/ that have sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "base/log.h"
#include "base/wake_event.h"
#include "comm/keys.h"

namespace modelet::comm {

inline constexpr size_t kKeyBytes = 32;

std::string to_hex(std::string_view bytes);
std::string to_bytes(std::string_view hex);  // of a key

// Before bind() or connect(). The key that a received message was sent with is sender_key().
void use_curve_server(zmq::socket_t& socket, const KeyPair& own);
void use_curve_client(zmq::socket_t& socket, const KeyPair& own, const std::string& server_key);

// The authenticated public key of the connection that a message came over; empty without CURVE. Valid as long
// as the message.
std::string_view sender_key(zmq::message_t& message);

// Address of the connection that a message came over.
std::string peer_address(zmq::message_t& message);

// Reads how a socket's handshakes end. Belongs to one thread; make it before the socket connects or binds.
class HandshakeMonitor {
 public:
  enum class Side { kServer, kClient };
  HandshakeMonitor(zmq::context_t& context, zmq::socket_t& socket, Side side);

  enum class Kind {
    kSucceeded,      // client only
    kRefused,        // client only: the server does not accept its key. Final, ZeroMQ does not try again
    kOtherSecurity,  // one side uses CURVE, the other does not. Final at the client
    kBroken,         // no handshake; so a server sees a client that expects another server's key
    kClosed  // the other side closed the connection; so a client sees that the server's key is another
  };
  struct Event {
    Kind kind = Kind::kClosed;
    std::string peer;  // its address; server only
  };
  // The next event, if there is one.
  std::optional<Event> next();
  void* handle() { return socket_.handle(); }  // readable when there may be an event

 private:
  std::optional<Event> interpret(uint16_t event, uint32_t value);

  const Side side_;
  zmq::socket_t socket_;
  std::map<uint32_t, std::string> peers_;  // of accepted connections, by descriptor
  std::optional<Kind> failed_;             // reported when its connection closes, which tells the address
};

// Answers, on a thread of its own, whether a key may connect to the server socket of a context, and logs who
// was refused and why. Make it before the socket binds and let it live longer: where nobody answers, ZeroMQ
// lets everybody in.
class GateKeeper {
 public:
  // `what` names the server in the log.
  GateKeeper(zmq::context_t& context, zmq::socket_t& server, std::string what);
  GateKeeper(const GateKeeper&) = delete;
  GateKeeper& operator=(const GateKeeper&) = delete;
  ~GateKeeper();

  // Why a key may not connect; empty if it may. Called on the gate keeper's thread.
  using Judge = std::function<std::string(const std::string& public_key)>;
  // Until then, handshakes wait.
  void open(Judge judge);

 private:
  void work();
  void answer_request();
  void log_failure(const HandshakeMonitor::Event& event);

  const std::string what_;
  zmq::socket_t requests_;
  HandshakeMonitor monitor_;
  WakeEvent stop_;
  Judge judge_;
  LogLimit refusals_, failures_;
  std::thread thread_;
};

}  // namespace modelet::comm
