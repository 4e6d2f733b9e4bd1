// Endpoints as users write them, and sockets at them: "tcp://HOST:PORT", where HOST is an IPv4 address, a
// name (looked up as IPv4), an interface's name or "*" to listen, or an IPv6 address in brackets;
// "ipc://PATH" on one machine. They are checked here, because ZeroMQ takes what it can make something of:
// port 99999 is 34463 to it.
#pragma once

#include <string>
#include <string_view>

namespace zmq {
class socket_t;
}

namespace modelet::comm {

// UsageError that says what is wrong. A port is 1 to 65535; to listen also "*", a free one.
void check_endpoint(std::string_view endpoint, bool to_listen);

// Checks and binds. UsageError also if the host is none of this machine; Error if the port is in use.
void listen_at(zmq::socket_t& socket, const std::string& endpoint);
// Checks and connects. UsageError for what cannot be a peer's address; whether somebody is there shows later.
void connect_to(zmq::socket_t& socket, const std::string& endpoint);

// True if nobody outside this machine can reach the endpoint ("tcp://127.0.0.1:5570", "tcp://[::1]:*",
// "ipc://...").
bool is_loopback(std::string_view endpoint);
// UsageError if `endpoint` is reachable from outside and neither has keys nor `insecure` was given. `what`
// names the socket, `options` the command line's options that give it keys.
void require_loopback(std::string_view endpoint, bool has_keys, bool insecure, std::string_view what,
                      std::string_view options);

}  // namespace modelet::comm
