#include "comm/transport/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <zmq.hpp>

#include "base/error.h"
#include "base/system/process.h"

namespace modelet::comm {
namespace {

constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";
constexpr const char* kExample = "tcp://127.0.0.1:5570";

// The host of "tcp://HOST:PORT" as it is written; empty if there is none.
std::string_view host_of(std::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with(kTcp) || colon < kTcp.size()) return {};
  return endpoint.substr(kTcp.size(), colon - kTcp.size());
}

// As ZeroMQ wants it to connect. Names of interfaces may have other characters.
bool is_host(std::string_view host) {
  const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0; };
  constexpr std::string_view kOtherCharacters = "-._:%[]";
  return (is_letter(host.front()) || host.front() == '[') && std::ranges::all_of(host, [&](unsigned char c) {
           return is_letter(c) || kOtherCharacters.find(static_cast<char>(c)) != kOtherCharacters.npos;
         });
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

// Replaces the "*" of "ipc://FOLDER/*" with a name that no other socket of the folder has.
std::string with_free_name(const std::string& endpoint) {
  if (!endpoint.starts_with(kIpc) || !endpoint.ends_with("/*")) return endpoint;
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}", endpoint.substr(0, endpoint.size() - 1), random(), random());
}

// Allows IPv6 only for an IPv6 address. A socket that may use both would take the IPv6 address of a name,
// and would not try another one.
void prepare(zmq::socket_t& socket, std::string_view endpoint, bool to_listen) {
  check_endpoint(endpoint, to_listen);
  socket.set(zmq::sockopt::ipv6, is_ipv6(host_of(endpoint)));
}

}  // namespace

zmq::context_t make_context() {
  constexpr uint64_t kOfContext = 24;  // with its threads, a socket and that socket's helpers
  constexpr size_t kThreads = 3;       // the context's two, and one that watches a socket
  require_descriptors(kOfContext, "a connection");
  require_threads(kThreads);
  return zmq::context_t();
}

void check_endpoint(std::string_view endpoint, bool to_listen) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("'{}' is not an address, which looks like {}: {}", endpoint, kExample, why));
  };
  if (endpoint.starts_with(kIpc) && endpoint.size() > kIpc.size()) {
    const size_t bytes = with_free_name(std::string(endpoint)).size() - kIpc.size();
    if (endpoint[kIpc.size()] == '@') refuse("a socket without a file is open to every user");
    if (constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1; bytes > kMost)
      refuse(fmt::format("the path of a socket has at most {} bytes, this one {}", kMost, bytes));
    return;
  }
  if (!endpoint.starts_with(kTcp)) refuse("it does not begin with tcp://");
  const std::string_view host = host_of(endpoint);
  if (host.empty()) refuse("a host and a port are needed");
  if (is_ipv6(host) != host.ends_with(']') || (!is_ipv6(host) && host.find(':') != host.npos))
    refuse("an IPv6 address stands in brackets, such as tcp://[::1]:5570");
  if (!to_listen && !is_host(host)) refuse("its host is no name or address");
  if (!is_port(endpoint.substr(endpoint.rfind(':') + 1), to_listen))
    refuse(fmt::format("a port is a number from 1 to 65535{}", to_listen ? ", or * for a free one" : ""));
}

void listen_at(zmq::socket_t& socket, const std::string& endpoint) {
  prepare(socket, endpoint, true);
  try {
    socket.bind(with_free_name(endpoint));
  } catch (const zmq::error_t& error) {
    const std::string what = "cannot listen on " + endpoint + ": " + error.what();
    if (error.num() == ENODEV || error.num() == EADDRNOTAVAIL)
      throw UsageError(what + "; give an address of this machine, in numbers");
    throw Error(what);
  }
}

void connect_to(zmq::socket_t& socket, const std::string& endpoint) {
  prepare(socket, endpoint, false);
  // Without a limit, the kernel asks an unreachable host less and less often, up to a minute apart, and notices late
  // that it is back.
  constexpr int kConnect = 3000;  // ms
  socket.set(zmq::sockopt::connect_timeout, kConnect);
  try {
    socket.connect(endpoint);
  } catch (const zmq::error_t& error) {
    throw UsageError(fmt::format("'{}' is not an address to connect to: {}", endpoint, error.what()));
  }
}

void unlink_socket(std::string_view endpoint) {
  if (endpoint.starts_with(kIpc)) ::unlink(std::string(endpoint.substr(kIpc.size())).c_str());
}

std::string address_on_the_way_to(std::string_view endpoint) {
  if (endpoint.starts_with(kIpc)) return "127.0.0.1";
  const auto text = [&](const char* why) {
    return fmt::format("no way from this machine to {}: {}", endpoint, why);
  };
  const bool ipv6 = is_ipv6(host_of(endpoint));
  std::string host(host_of(endpoint));
  if (ipv6) host = host.substr(1, host.size() - 2);
  const addrinfo wanted{.ai_family = ipv6 ? AF_INET6 : AF_INET, .ai_socktype = SOCK_DGRAM};
  addrinfo* list = nullptr;
  const int unknown = ::getaddrinfo(host.c_str(), "1", &wanted, &list);
  if (unknown != 0) throw Error(text(::gai_strerror(unknown)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found(list, ::freeaddrinfo);

  // Connecting a datagram socket looks up the route and sends nothing.
  const int fd = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool known = fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                     ::getsockname(fd, generic, &size) == 0;
  const int failure = errno;
  if (fd >= 0) ::close(fd);
  if (!known) throw Error(text(std::strerror(failure)));
  std::array<char, NI_MAXHOST> name{};
  if (::getnameinfo(generic, size, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    throw Error(text("its address cannot be written"));
  return ipv6 ? fmt::format("[{}]", name.data()) : name.data();
}

bool is_loopback(std::string_view endpoint) {
  if (endpoint.starts_with(kIpc)) return true;
  const std::string host(host_of(endpoint));
  if (host == "localhost" || host == "[::1]") return true;
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

bool is_private(std::string_view endpoint) {
  if (!endpoint.starts_with(kIpc)) return false;
  const std::filesystem::path folder = std::filesystem::path(endpoint.substr(kIpc.size())).parent_path();
  constexpr mode_t kOthersBits = 0077;  // permission bits of group and others
  struct stat info {};
  return ::stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & kOthersBits) == 0;
}

void require_keys(std::string_view endpoint, bool has_keys, bool insecure, std::string_view what,
                  std::string_view options) {
  if (has_keys || insecure || is_private(endpoint)) return;
  throw UsageError(fmt::format(
      "{} {} can be reached {}, and without keys connections are neither encrypted nor authenticated: make a "
      "key with 'modelet keygen FILE' and give {} (docs/pool.md), or give --insecure where all others are "
      "trusted",
      what, endpoint, is_loopback(endpoint) ? "by every user of this machine" : "from other machines",
      options));
}

}  // namespace modelet::comm
