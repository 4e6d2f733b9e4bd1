// Endpoints as users write them, and sockets at them. An endpoint is "tcp://HOST:PORT" or, within one
// machine, "ipc://PATH". HOST is an IPv4 address, a name (looked up as IPv4), or an IPv6 address in
// brackets. To listen, it may also be an interface's name or "*", and "ipc://FOLDER/*" listens at a free
// name in a folder. Endpoints are checked here because ZeroMQ accepts whatever it can interpret: it takes
// port 99999 for 34463.
#pragma once

#include <string>
#include <string_view>

namespace zmq {
class context_t;
class socket_t;
}  // namespace zmq

namespace modelet::comm {

// For the sockets of one object. Throws Error if too few files may be opened for them, and std::system_error if too
// few threads can be started: then ZeroMQ would end the process.
zmq::context_t make_context();

// Throws UsageError, which says what is wrong. A port is 1 to 65535 or, to listen, "*" for a free one.
void check_endpoint(std::string_view endpoint, bool to_listen);

// Checks the endpoint and binds. Also throws UsageError if this machine has no such host, and Error if the
// port is in use.
void listen_at(zmq::socket_t& socket, const std::string& endpoint);
// Checks the endpoint and connects. Throws UsageError if this cannot be a peer's address. Whether anybody
// is there shows later.
void connect_to(zmq::socket_t& socket, const std::string& endpoint);

// Removes the file that was made by listening at an "ipc://" endpoint. ZeroMQ leaves it behind.
void unlink_socket(std::string_view endpoint);

// This machine's numeric address on the route to an endpoint, as the host of an endpoint. A peer that is
// reached over this route can reach this machine at that address, unless addresses are translated in
// between. Nothing is sent. Throws Error if the name cannot be looked up, or if there is no route. Both may be
// different later, when the network is up.
std::string address_on_the_way_to(std::string_view endpoint);

// Whether only this machine can reach the endpoint ("tcp://127.0.0.1:5570", "tcp://[::1]:*", "ipc://...").
bool is_loopback(std::string_view endpoint);
// Whether the endpoint is "ipc://" in a folder that only this process's user may enter. It then needs no
// keys.
bool is_private(std::string_view endpoint);
// Throws UsageError if other users can reach `endpoint`, from this machine or another one, and it has no
// keys and `insecure` was not given. `what` names the socket, and `options` the command-line options that
// give it keys.
void require_keys(std::string_view endpoint, bool has_keys, bool insecure, std::string_view what,
                  std::string_view options);

}  // namespace modelet::comm
