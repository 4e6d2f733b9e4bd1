#include "comm/security/connections.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace modelet::comm {
namespace {

// Bytes that ZeroMQ adds to a message, and sends each second to check that the other side is still there.
constexpr uint64_t kBytesAround = 512;
constexpr double kBytesPerSecond = 1024;

template <class Value>
bool get_option(int descriptor, int level, int option, Value& value) {
  socklen_t size = sizeof value;
  return ::getsockopt(descriptor, level, option, &value, &size) == 0 && size == sizeof value;
}

uint64_t cookie_of(int descriptor) {
  uint64_t cookie = 0;
  return get_option(descriptor, SOL_SOCKET, SO_COOKIE, cookie) ? cookie : 0;
}

// What the kernel counts of a TCP connection; all 0 for other connections.
tcp_info info_of_tcp(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return info;
}

// "192.168.1.7:40132", and the part that the addresses of one host have in common.
std::pair<std::string, std::string> peer_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(descriptor, generic, &size) != 0 ||
      ::getnameinfo(generic, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {"unknown address", ""};
  std::string network = host.data();
  if (address.ss_family == AF_INET6) {
    constexpr size_t kNetworkBytes = 8;
    const auto* six = reinterpret_cast<const sockaddr_in6*>(&address);
    network.assign(reinterpret_cast<const char*>(&six->sin6_addr), kNetworkBytes);
  }
  return {fmt::format("{}:{}", host.data(), port.data()), network};
}

// A third, because there are two server sockets (for control and for data), and each must leave enough for
// the other and for the program's files.
size_t third_of_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur / 3;
}

}  // namespace

Connections::Connections(std::string what, const ConnectionLimits& limits)
    : what_(std::move(what)), limits_(limits), most_(third_of_descriptors()) {}

void Connections::accepted(int descriptor) {
  const std::lock_guard lock(mutex_);
  auto [peer, network] = peer_of(descriptor);
  if (const auto former = open_.find(descriptor); former != open_.end()) forget(former);
  const auto added = open_
                         .emplace(descriptor, Connection{.cookie = cookie_of(descriptor),
                                                         .order = ++accepted_,
                                                         .peer = std::move(peer),
                                                         .network = std::move(network)})
                         .first;
  const std::string& its = added->second.network;
  if (count(&Connection::network, its) > limits_.of_address)
    return shut(added, fmt::format("more than {} connections from its address", limits_.of_address));
  const auto silent = std::ranges::count_if(
      open_, [&](const auto& entry) { return entry.second.number == 0 && entry.second.network == its; });
  if (static_cast<size_t>(silent) > limits_.silent_of_address)
    return shut(oldest_silent(&its),
                fmt::format("more than {} connections from its address that sent nothing",
                            limits_.silent_of_address));
  if (open_.size() > most_)
    shut(oldest_silent(nullptr), fmt::format("more than {} connections, a third of the descriptors", most_));
}

std::string Connections::ended(int descriptor) {
  const std::lock_guard lock(mutex_);
  const auto connection = open_.find(descriptor);
  return connection != open_.end() ? forget(connection).peer : "";
}

Connections::Connection Connections::forget(Open::iterator connection) {
  by_number_.erase(connection->second.number);
  return std::move(open_.extract(connection).mapped());
}

void Connections::read(int descriptor, size_t bytes, std::string_view key, uint64_t number,
                       bool is_stranger) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(descriptor);
  if (found == open_.end()) return;
  Connection& connection = found->second;
  connection.read += bytes + kBytesAround;
  if (number > connection.number) {
    by_number_.erase(std::exchange(connection.number, number));
    by_number_[number] = descriptor;
  }
  if (key.empty() || (!connection.key.empty() && is_stranger == connection.is_stranger)) return;
  connection.key = is_stranger ? "strangers" : key;  // which is no key
  connection.is_stranger = is_stranger;
  if (count(&Connection::key, connection.key) > limits_.of_key)
    shut(found, fmt::format("more than {} connections with its key", limits_.of_key));
}

bool Connections::is_open(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return by_number_.contains(number);
}

void Connections::queued(uint64_t number, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_number_.find(number); found != by_number_.end())
    open_.at(found->second).queued += static_cast<uint64_t>(bytes);
}

void Connections::refuse(int descriptor, uint64_t number, const std::string& why) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(descriptor);
  if (found != open_.end() && (found->second.number == 0 || found->second.number == number)) shut(found, why);
}

bool Connections::watches() const {
  const std::lock_guard lock(mutex_);
  return limits_.unread_bytes > 0 && !open_.empty();
}

void Connections::look(double now) {
  const std::lock_guard lock(mutex_);
  for (auto& [descriptor, connection] : open_) {
    if (cookie_of(descriptor) != connection.cookie) continue;
    const tcp_info info = info_of_tcp(descriptor);
    connection.received = info.tcpi_bytes_received;
    connection.acknowledged = info.tcpi_bytes_acked;
  }
  if (limits_.silent_seconds > 0) look_at_silent(now);
  look_at_unread(now);
  if (limits_.unsent_bytes > 0) look_at_unsent();
}

void Connections::look_at_silent(double now) {
  for (auto entry = open_.begin(); entry != open_.end();) {
    const auto each = entry++;
    Connection& connection = each->second;
    if (connection.since == 0) connection.since = now;
    if (connection.number == 0 && now - connection.since > limits_.silent_seconds)
      shut(each, fmt::format("it sent nothing for {:.0f} s", limits_.silent_seconds));
  }
}

void Connections::look_at_unread(double now) {
  const auto idle =
      static_cast<uint64_t>(kBytesPerSecond * std::clamp(now - std::exchange(looked_, now), 0.0, 1.0));
  const auto unread = [](const auto& entry) { return entry.second.received - entry.second.accounted; };
  for (auto& [descriptor, connection] : open_)
    connection.accounted =
        std::min(connection.received, connection.accounted + std::exchange(connection.read, 0) + idle);
  const auto most = [this](const Connection& connection) {
    const uint64_t special = connection.number == 0      ? limits_.unread_bytes_of_silent
                             : connection.is_stranger ? limits_.unread_bytes_of_stranger
                                                         : 0;
    return special == 0 ? limits_.unread_bytes : special;
  };
  shut_beyond(most, limits_.all_unread_bytes, "bytes without a whole message", unread);
}

void Connections::look_at_unsent() {
  // A kernel that does not count says 0, although the handshake was acknowledged.
  const auto unsent = [](const auto& entry) {
    const Connection& connection = entry.second;
    return connection.acknowledged == 0 ? 0 : connection.queued - connection.acknowledged;
  };
  for (auto& [descriptor, connection] : open_)
    connection.queued = std::max(connection.queued, connection.acknowledged);
  const auto most = [this](const Connection&) { return limits_.unsent_bytes; };
  shut_beyond(most, limits_.all_unsent_bytes, "bytes that wait for a peer that does not read",
              unsent);
}

template <class MostOf, class BytesOf>
void Connections::shut_beyond(const MostOf& most_of, uint64_t of_all, const char* what,
                              const BytesOf& bytes_of) {
  uint64_t all = 0;
  for (auto entry = open_.begin(); entry != open_.end();) {
    const auto next = std::next(entry);
    const uint64_t of_one = most_of(entry->second);
    if (const uint64_t bytes = bytes_of(*entry); bytes > of_one)
      shut(entry, fmt::format("{} {}, the limit is {}", bytes, what, of_one));
    else
      all += bytes;
    entry = next;
  }
  while (all > of_all) {
    const auto most = std::ranges::max_element(open_, {}, bytes_of);
    all -= bytes_of(*most);
    shut(most,
         fmt::format("all connections together have more than {} {}, this one most of them", of_all, what));
  }
}

// Also forgets the connection: what ZeroMQ reports about it later is ignored.
void Connections::shut(Open::iterator connection, const std::string& why) {
  if (connection == open_.end()) return;
  if (shut_.next())
    log_warning("{}: ends the connection with {}: {} (number {})", what_, connection->second.peer, why,
                shut_.count());
  if (cookie_of(connection->first) == connection->second.cookie) {
    // Send a reset when ZeroMQ closes the connection. A peer that waits for room to send would not notice
    // any other end for minutes.
    constexpr linger kReset{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(connection->first, SOL_SOCKET, SO_LINGER, &kReset, sizeof kReset);
    ::shutdown(connection->first, SHUT_RDWR);
  }
  forget(connection);
}

Connections::Open::iterator Connections::oldest_silent(const std::string* network) {
  auto oldest = open_.end();
  for (auto entry = open_.begin(); entry != open_.end(); ++entry)
    if (entry->second.number == 0 && (network == nullptr || entry->second.network == *network) &&
        (oldest == open_.end() || entry->second.order < oldest->second.order))
      oldest = entry;
  return oldest;
}

size_t Connections::count(const std::string Connection::*member, std::string_view value) const {
  return static_cast<size_t>(
      std::ranges::count_if(open_, [&](const auto& entry) { return entry.second.*member == value; }));
}

}  // namespace modelet::comm
