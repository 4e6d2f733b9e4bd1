// Endpoints as users write them, and sockets at them: "tcp://HOST:PORT" and, on one machine, "ipc://PATH".
// HOST is an IPv4 address, a name (looked up as IPv4), an IPv6 address in brackets or, to listen, an
// interface's name or "*"; "ipc://FOLDER/*" listens at a free name in a folder. Endpoints are checked here
// because ZeroMQ accepts whatever it can interpret: it takes port 99999 for 34463.
#pragma once

#include <string>
#include <string_view>

namespace zmq {
class socket_t;
}

namespace modelet::comm {

// UsageError that says what is wrong. A port is 1 to 65535 or, to listen, "*" for a free one.
void check_endpoint(std::string_view endpoint, bool to_listen);

// Checks and binds. Also UsageError if this machine has no such host; Error if the port is in use.
void listen_at(zmq::socket_t& socket, const std::string& endpoint);
// Checks and connects. UsageError for what cannot be a peer's address; whether somebody is there shows later.
void connect_to(zmq::socket_t& socket, const std::string& endpoint);

// Removes the file that listening at an "ipc://" endpoint has made, which ZeroMQ leaves behind.
void unlink_socket(std::string_view endpoint);

// The numeric address of this machine on the route to an endpoint, as the host of an endpoint: a peer that is
// reached there can reach this machine at it, unless addresses are translated in between. Nothing is sent.
// UsageError if there is no route.
std::string address_on_the_way_to(std::string_view endpoint);

// True if nobody outside this machine can reach the endpoint ("tcp://127.0.0.1:5570", "tcp://[::1]:*",
// "ipc://...").
bool is_loopback(std::string_view endpoint);
// True for "ipc://" in a folder that nobody but this process's user may enter: needs no keys.
bool is_private(std::string_view endpoint);
// UsageError if others can reach `endpoint`, from this machine or another one, and it has no keys and
// `insecure` was not given. `what` names the socket, `options` the command-line options that give it keys.
void require_keys(std::string_view endpoint, bool has_keys, bool insecure, std::string_view what,
                  std::string_view options);

}  // namespace modelet::comm
