// HOST:PORT as users write it, for server.cc and client.cc: the only files that include Boost.Asio.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace modelet::comm::http {

// HOST is numeric, an IPv6 one in brackets, or localhost. nullopt: this is no such text. Without ":PORT" the port
// is `default_port`, if there is one.
inline std::optional<boost::asio::ip::tcp::endpoint> parse_endpoint(
    std::string_view text, std::optional<uint16_t> default_port = {}) {
  std::optional<uint16_t> port = default_port;
  if (const size_t colon = text.rfind(':'); colon != std::string_view::npos && !text.ends_with(']')) {
    const char* const end = text.data() + text.size();
    const auto [last, failure] = std::from_chars(text.data() + colon + 1, end, port.emplace());
    if (failure != std::errc() || last != end) return std::nullopt;
    text = text.substr(0, colon);
  }
  if (text.size() > 2 && text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  boost::system::error_code failure;
  const auto address =
      boost::asio::ip::make_address(text == "localhost" ? "127.0.0.1" : std::string(text), failure);
  if (failure || !port) return std::nullopt;
  return boost::asio::ip::tcp::endpoint(address, *port);
}

}  // namespace modelet::comm::http
