#define BOOST_ASIO_DISABLE_CO_AWAIT  // not used here; Boost 1.74 takes another form of it than clang has
#include "node_agent/owner/notice/http.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <charconv>
#include <chrono>

#include "base/error.h"
#include "base/text/printable.h"

namespace modelet::agent {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr size_t kMostBody = size_t{64} << 10;
constexpr uint32_t kMostHeader = 8 << 10;

asio::ip::tcp::endpoint parse_address(const std::string& address) {
  const auto wrong = [&] {
    return UsageError("'" + printable(address, 128) + "' is not an address like http://169.254.169.254:80");
  };
  constexpr std::string_view kScheme = "http://";
  if (!address.starts_with(kScheme)) throw wrong();
  std::string host = address.substr(kScheme.size());
  uint16_t port = 80;
  if (const size_t colon = host.rfind(':'); colon != std::string::npos && !host.ends_with(']')) {
    const char* const end = host.data() + host.size();
    const auto [last, failure] = std::from_chars(host.data() + colon + 1, end, port);
    if (failure != std::errc() || last != end) throw wrong();
    host.resize(colon);
  }
  if (host.size() > 2 && host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  boost::system::error_code failure;
  const auto number = asio::ip::make_address(host, failure);
  if (failure) throw wrong();
  return {number, port};
}

}  // namespace

void check_http_address(const std::string& address) { parse_address(address); }

HttpAnswer ask_http(const std::string& address, const HttpQuestion& question, double timeout_seconds,
                    const std::function<void()>& check) {
  const asio::ip::tcp::endpoint endpoint = parse_address(address);
  http::request<http::empty_body> request;
  request.version(11);
  request.method_string(question.method);
  request.target(question.path);
  request.set(http::field::host, address.substr(address.find("//") + 2));
  request.set(http::field::connection, "close");
  for (const auto& [name, value] : question.headers) request.set(name, value);
  request.prepare_payload();

  asio::io_context io;
  beast::tcp_stream stream(io);
  beast::flat_buffer buffer(kMostBody + kMostHeader);
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMostBody);
  parser.header_limit(kMostHeader);
  beast::error_code failure;
  // One deadline for the whole exchange: it is not set again.
  stream.expires_after(std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000)));
  stream.async_connect(endpoint, [&](beast::error_code not_connected) {
    if ((failure = not_connected)) return;
    http::async_write(stream, request, [&](beast::error_code not_sent, size_t) {
      if ((failure = not_sent)) return;
      http::async_read_header(stream, buffer, parser, [&](beast::error_code no_header, size_t) {
        if ((failure = no_header)) return;
        // Boost 1.74 does not apply body_limit() to a response with a content length.
        if (parser.content_length().value_or(0) > kMostBody) {
          failure = http::error::body_limit;
          return;
        }
        http::async_read(stream, buffer, parser,
                         [&](beast::error_code not_read, size_t) { failure = not_read; });
      });
    });
  });
  constexpr std::chrono::milliseconds kLook{100};
  while (io.run_for(kLook), !io.stopped())
    if (check) check();
  if (failure) throw Error(address + question.path + ": " + failure.message());
  return {parser.get().result_int(), std::move(parser.get().body())};
}

}  // namespace modelet::agent
