// HOST:PORT as users write it, for server.cc and client.cc: the only files that include Boost.Asio.
#pragma once

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace modelet::comm::http {

struct HostAndPort {
  std::string_view host;  // without its brackets
  bool has_brackets = false;
  std::optional<uint16_t> port;
};

// "HOST" or "HOST:PORT". A HOST with colons is in brackets. nullopt: this is no such text, for example because
// something follows the port.
inline std::optional<HostAndPort> split_host(std::string_view text) {
  const bool has_brackets = text.starts_with('[');
  if (has_brackets) text.remove_prefix(1);
  const size_t end = std::min(text.find(has_brackets ? ']' : ':'), text.size());
  HostAndPort found{text.substr(0, end), has_brackets, {}};
  text.remove_prefix(end);
  if (has_brackets && !text.starts_with(']')) return std::nullopt;
  if (has_brackets) text.remove_prefix(1);
  if (text.empty()) return found;
  const char* const last = text.data() + text.size();
  const auto [parsed, failure] = std::from_chars(text.data() + 1, last, found.port.emplace());
  if (!text.starts_with(':') || failure != std::errc() || parsed != last) return std::nullopt;
  return found;
}

// HOST is numeric, an IPv6 one in brackets, or localhost. nullopt: this is no such text. Without ":PORT" the port
// is `default_port`, if there is one.
inline std::optional<boost::asio::ip::tcp::endpoint> parse_endpoint(
    std::string_view text, std::optional<uint16_t> default_port = {}) {
  const std::optional<HostAndPort> found = split_host(text);
  if (!found || (!found->port && !default_port)) return std::nullopt;
  boost::system::error_code failure;
  const auto address = boost::asio::ip::make_address(
      found->host == "localhost" ? "127.0.0.1" : std::string(found->host), failure);
  if (failure || address.is_v6() != found->has_brackets) return std::nullopt;
  return boost::asio::ip::tcp::endpoint(address, found->port.value_or(default_port.value_or(0)));
}

}  // namespace modelet::comm::http
