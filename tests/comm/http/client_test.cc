#include "comm/http/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/comm/http/stand_in.h"
#include "tests/error_of.h"

namespace modelet::comm::http {
namespace {

using test::error_of;
using testing::HasSubstr;

TEST(Client, SendsARequest) {
  test::StandIn server;
  server.reply("PUT /a?b ", "found", "404 Not Found");
  const auto [status, body] = send_request(server.address(), {"PUT", "/a?b", {{"X", "y"}}}, 60);
  EXPECT_EQ(status, 404u);
  EXPECT_EQ(body, "found");
  EXPECT_THAT(server.received(), HasSubstr("X: y\r\n"));
}

TEST(Client, BrokenResponsesAreErrors) {
  test::StandIn server;
  const std::string huge(1 << 20, 'x');
  for (const std::string& text :
       {std::string(), std::string("nonsense\r\n\r\n"), std::string("HTTP/1.1 200 OK\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"),
        "HTTP/1.1 200 OK\r\nX: " + huge + "\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n" + huge,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100000\r\n" + huge + "\r\n0\r\n\r\n",
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\nx"),
        "HTTP/1.1 200 OK\r\n\r\n" + huge}) {
    server.respond("GET /", text);
    EXPECT_THAT(error_of([&] {
                  send_request(server.address(), {"GET", "/", {}}, 60);
                }),
                HasSubstr(server.address()))
        << text.substr(0, 40);
  }
}

TEST(Client, WhoIsSlowIsNotWaitedFor) {
  test::StandIn server;
  for (const char* text : {"...", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nTRUE..."}) {
    server.respond("GET /", text);
    EXPECT_THAT(error_of([&] {
                  send_request(server.address(), {"GET", "/", {}}, 0.2);
                }),
                HasSubstr("timeout"));
  }
}

TEST(Client, NobodyIsThere) {
  EXPECT_THAT(error_of([&] {
                send_request("http://127.0.0.1:1", {"GET", "/", {}}, 60);
              }),
              HasSubstr("http://127.0.0.1:1/"));
}

TEST(Client, Addresses) {
  for (const char* address :
       {"127.0.0.1", "https://127.0.0.1", "http://metadata", "http://127.0.0.1:", "http://127.0.0.1:x",
        "http://127.0.0.1:70000", "http://127.0.0.1/x", "http://"})
    EXPECT_THAT(error_of([&] { check_address(address); }), HasSubstr("is not an address")) << address;
  for (const char* address : {"http://127.0.0.1", "http://[::1]:80", "http://[::1]"}) check_address(address);
}

}  // namespace
}  // namespace modelet::comm::http
