#include "comm/endpoint.h"

#include <arpa/inet.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cctype>
#include <zmq.hpp>

#include "base/error.h"

namespace modelet::comm {
namespace {

constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";
constexpr const char* kExample = "tcp://127.0.0.1:5570";

// The host of "tcp://HOST:PORT", as it is written; empty if there is none.
std::string_view host_of(std::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with(kTcp) || colon < kTcp.size()) return {};
  return endpoint.substr(kTcp.size(), colon - kTcp.size());
}

bool is_ipv6(std::string_view host) { return host.starts_with('['); }

bool is_port(std::string_view text, bool to_listen) {
  if (text == "*") return to_listen;
  constexpr size_t kMostDigits = 5;
  if (text.empty() || text.size() > kMostDigits ||
      !std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; }))
    return false;
  const int port = std::stoi(std::string(text));
  return port > 0 && port <= UINT16_MAX;
}

// IPv6 only for who asks for it: a socket that may use both takes a name's IPv6 address and tries no other.
void prepare(zmq::socket_t& socket, std::string_view endpoint, bool to_listen) {
  check_endpoint(endpoint, to_listen);
  socket.set(zmq::sockopt::ipv6, is_ipv6(host_of(endpoint)));
}

}  // namespace

void check_endpoint(std::string_view endpoint, bool to_listen) {
  if (endpoint.starts_with(kIpc) && endpoint.size() > kIpc.size()) return;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("'{}' is not an address, which looks like {}: {}", endpoint, kExample, why));
  };
  if (!endpoint.starts_with(kTcp)) refuse("it does not begin with tcp://");
  const std::string_view host = host_of(endpoint);
  if (host.empty()) refuse("a host and a port are needed");
  if (is_ipv6(host) != host.ends_with(']') || (!is_ipv6(host) && host.find(':') != host.npos))
    refuse("an IPv6 address stands in brackets, such as tcp://[::1]:5570");
  if (!is_port(endpoint.substr(endpoint.rfind(':') + 1), to_listen))
    refuse(fmt::format("a port is a number from 1 to 65535{}", to_listen ? ", or * for a free one" : ""));
}

void listen_at(zmq::socket_t& socket, const std::string& endpoint) {
  prepare(socket, endpoint, true);
  try {
    socket.bind(endpoint);
  } catch (const zmq::error_t& error) {
    const std::string what = "cannot listen on " + endpoint + ": " + error.what();
    if (error.num() == ENODEV || error.num() == EADDRNOTAVAIL)
      throw UsageError(what + "; give an address of this machine, in numbers");
    throw Error(what);
  }
}

void connect_to(zmq::socket_t& socket, const std::string& endpoint) {
  prepare(socket, endpoint, false);
  try {
    socket.connect(endpoint);
  } catch (const zmq::error_t& error) {
    throw UsageError(fmt::format("'{}' is not an address to connect to: {}", endpoint, error.what()));
  }
}

bool is_loopback(std::string_view endpoint) {
  if (endpoint.starts_with(kIpc)) return true;
  const std::string host(host_of(endpoint));
  if (host == "localhost" || host == "[::1]") return true;
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

void require_loopback(std::string_view endpoint, bool has_keys, bool insecure, std::string_view what,
                      std::string_view options) {
  if (is_loopback(endpoint) || has_keys || insecure) return;
  throw UsageError(fmt::format(
      "{} {} can be reached from other machines, and without keys connections are neither encrypted nor "
      "authenticated: make a key with 'modelet keygen FILE' and give {} (docs/pool.md), use 127.0.0.1, or "
      "give --insecure on a closed test network",
      what, endpoint, options));
}

}  // namespace modelet::comm
