#include "comm/http/client.h"

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
#include <chrono>

#include "base/error.h"
#include "base/text/printable.h"
#include "comm/http/endpoint.h"

namespace modelet::comm::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace protocol = boost::beast::http;

constexpr size_t kMostBody = size_t{64} << 10;
constexpr uint32_t kMostHeader = 8 << 10;

asio::ip::tcp::endpoint parse_address(const std::string& address) {
  constexpr std::string_view kScheme = "http://";
  if (address.starts_with(kScheme))
    if (const auto endpoint = parse_endpoint(std::string_view(address).substr(kScheme.size()), 80))
      return *endpoint;
  throw UsageError("'" + printable(address, 128) + "' is not an address like http://169.254.169.254:80");
}

}  // namespace

void check_address(const std::string& address) { parse_address(address); }

ClientResponse send_request(const std::string& address, const ClientRequest& sent, double timeout_seconds,
                            const std::function<void()>& check) {
  const asio::ip::tcp::endpoint endpoint = parse_address(address);
  protocol::request<protocol::empty_body> request;
  request.version(11);
  request.method_string(sent.method);
  request.target(sent.path);
  request.set(protocol::field::host, address.substr(address.find("//") + 2));
  request.set(protocol::field::connection, "close");
  for (const auto& [name, value] : sent.headers) request.set(name, value);
  request.prepare_payload();

  asio::io_context io;
  beast::tcp_stream stream(io);
  beast::flat_buffer buffer(kMostBody + kMostHeader);
  protocol::response_parser<protocol::string_body> parser;
  parser.body_limit(kMostBody);
  parser.header_limit(kMostHeader);
  beast::error_code failure;
  // One deadline for the whole exchange: it is not set again.
  stream.expires_after(std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000)));
  stream.async_connect(endpoint, [&](beast::error_code not_connected) {
    if ((failure = not_connected)) return;
    protocol::async_write(stream, request, [&](beast::error_code not_sent, size_t) {
      if ((failure = not_sent)) return;
      protocol::async_read_header(stream, buffer, parser, [&](beast::error_code no_header, size_t) {
        if ((failure = no_header)) return;
        // Boost 1.74 does not apply body_limit() to a response with a content length.
        if (parser.content_length().value_or(0) > kMostBody) {
          failure = protocol::error::body_limit;
          return;
        }
        protocol::async_read(stream, buffer, parser,
                             [&](beast::error_code not_read, size_t) { failure = not_read; });
      });
    });
  });
  constexpr std::chrono::milliseconds kLook{100};
  while (io.run_for(kLook), !io.stopped())
    if (check) check();
  if (failure) throw Error(address + sent.path + ": " + failure.message());
  return {parser.get().result_int(), std::move(parser.get().body())};
}

}  // namespace modelet::comm::http
