#include "comm/http/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/descriptor.h"
#include "tests/error_of.h"

namespace modelet::comm::http {
namespace {

using test::error_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

constexpr auto kJson = "Content-Type: application/json\r\n";
constexpr auto kHealth = "GET /healthz HTTP/1.1\r\n\r\n";
constexpr auto kLastHealth = "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n";

std::string post(const std::string& path, const std::string& body, const std::string& fields = "") {
  return "POST " + path + " HTTP/1.1\r\n" + kJson + fields +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

void wait_until(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A connection to a server, from an address of this machine.
class Connection {
 public:
  explicit Connection(const Server& server, const std::string& data = "", const char* from = "127.0.0.1")
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const std::string endpoint = server.endpoint();
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, from, &address.sin_addr);
    connected_ = ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(static_cast<uint16_t>(std::stoul(endpoint.substr(endpoint.rfind(':') + 1))));
    connected_ =
        connected_ && ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    send(data);
  }

  bool connected() const { return connected_; }
  bool send(const std::string& data) {
    for (size_t sent = 0; sent < data.size();) {
      const ssize_t count = ::send(socket_.get(), data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return false;
      sent += static_cast<size_t>(count);
    }
    return true;
  }
  // Waits for more. "": the server has closed the connection.
  std::string some() {
    std::string text(1 << 16, '\0');
    text.resize(
        static_cast<size_t>(std::max<ssize_t>(::recv(socket_.get(), text.data(), text.size(), 0), 0)));
    return text;
  }
  // What comes until the server closes the connection.
  std::string all() {
    std::string text;
    for (std::string part; !(part = some()).empty();) text += part;
    return text;
  }
  // Reads what has arrived. Whether the server has closed the connection.
  bool is_closed() {
    char c = 0;
    ssize_t count = 0;
    while ((count = ::recv(socket_.get(), &c, 1, MSG_DONTWAIT)) > 0) continue;
    return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }

 private:
  Descriptor socket_;
  bool connected_ = false;
};

std::vector<std::string> statuses(const std::string& responses) {
  static const std::regex status("HTTP/1.1 (\\d+)");
  std::vector<std::string> found;
  for (std::sregex_iterator one(responses.begin(), responses.end(), status), end; one != end; ++one)
    found.push_back((*one)[1]);
  return found;
}

// A service of words: another user of the server than `modelet serve`. POST /v1/words counts words. Requests of
// /v1/held are held until release().
class ServerTest : public testing::Test {
 protected:
  ~ServerTest() override { release(); }

  void start(ServerOptions options = {}, const std::string& token = "") {
    release();
    server_.reset();
    router_.emplace(token.empty() ? std::vector<Token>() : std::vector<Token>{{.secret = token}});
    router_->add({.method = "POST",
                  .path = "/v1/words",
                  .handler =
                      [this](const Request& request) {
                        const auto words = 1 + std::ranges::count(request.body, ' ');
                        words_ += static_cast<uint64_t>(words);
                        return Response{.body = std::to_string(words) + "\n"};
                      },
                  .seconds = &seconds_});
    router_->add({.method = "POST",
                  .path = "/v1/held",
                  .handler =
                      [this](const Request&) {
                        std::unique_lock lock(mutex_);
                        ++held_;
                        changed_.wait(lock, [this] { return released_; });
                        --held_;
                        return Response{};
                      },
                  .slow = true});
    router_->add_metrics([this](MetricsText& text) {
      text.histogram("words_seconds", "Time of counting.", seconds_);
      text.counter("words_total", "Words that were counted.", static_cast<double>(words_));
    });
    options.listen = "127.0.0.1:0";
    released_ = false;
    server_.emplace(*router_, options);
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  void wait_for_held(int count) {
    wait_until([&] {
      const std::lock_guard lock(mutex_);
      return held_ == count;
    });
  }
  // The response on a connection of its own, which the server or the request closes.
  std::string response_to(const std::string& request) { return Connection(*server_, request).all(); }
  // The server has read the header of a request, and the body does not come.
  Connection begin_request() {
    Connection connection(*server_, "POST /v1/words HTTP/1.1\r\n" + std::string(kJson) +
                                        "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    EXPECT_THAT(connection.some(), HasSubstr("100 Continue"));
    return connection;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
  int held_ = 0;
  std::atomic<uint64_t> words_{0};
  Histogram seconds_;
  std::optional<Router> router_;
  std::optional<Server> server_;
};

TEST_F(ServerTest, HandlersAndMetrics) {
  start();
  EXPECT_THAT(server_->endpoint(), MatchesRegex("http://127.0.0.1:[0-9]+"));
  EXPECT_THAT(response_to(post("/v1/words", "\"one two\"", "Connection: close\r\n")),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Type: application/json\r\n"),
                    HasSubstr("\r\n\r\n2\n")));
  EXPECT_THAT(response_to("GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"),
              AllOf(HasSubstr("modelet_requests_total{path=\"/v1/words\",code=\"200\"} 1\n"),
                    HasSubstr("modelet_requests_in_flight 1\n"), HasSubstr("words_total 2\n"),
                    HasSubstr("words_seconds_count 1\n"), HasSubstr("modelet_connections ")));
  Connection head(*server_, "HEAD /metrics HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(head.all(), MatchesRegex("(.|\r|\n)*Content-Length: [1-9](.|\r|\n)*\r\n\r\n"));
}

TEST_F(ServerTest, SeveralRequestsAtOnce) {
  start();
  const std::string health = kHealth;
  EXPECT_THAT(statuses(response_to(health + health + post("/v1/words", "[]") +
                                   "GET /nowhere HTTP/1.1\r\nConnection: close\r\n\r\n")),
              ElementsAre("200", "200", "200", "404"));
}

TEST_F(ServerTest, WhatIsRefused) {
  start({.header_bytes = 1100, .body_bytes = 2000});
  const std::string chunked = "POST /v1/words HTTP/1.1\r\n" + std::string(kJson) +
                              "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const auto& [request, status, text] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"words, words\r\n\r\n", "400", "not HTTP"},
           {"GET /nowhere HTTP/1.1\r\nConnection: close\r\n\r\n", "404", "/v1/words"},
           {"GET /v1/words HTTP/1.1\r\nConnection: close\r\n\r\n", "405", "Allow: POST\r\n"},
           {"POST /v1/words HTTP/1.1\r\nContent-Length: 3\r\n\r\n", "415", "application/json"},
           {post("/v1/words", std::string(3000, ' ')), "413", "2000 bytes"},
           {chunked + "bb8\r\n" + std::string(3000, ' ') + "\r\n0\r\n\r\n", "413", "--body-bytes"},
           {chunked + "2\r\n[1\r\n1\r\n]\r\n0\r\n\r\n", "200", "\r\n\r\n1\n"},
           {"GET /healthz HTTP/1.1\r\nX: " + std::string(5000, 'a') + "\r\n\r\n", "431", "1100 bytes"}}) {
    const std::string response = response_to(request);
    EXPECT_THAT(statuses(response), ElementsAre(status)) << request.substr(0, 100);
    EXPECT_THAT(response, HasSubstr(text)) << request.substr(0, 100);
  }
}

TEST_F(ServerTest, ARequestThatDoesNotEnd) {
  start({.read_seconds = 0.1});
  for (const char* begin :
       {"POST /v1/words HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{", "GET"})
    EXPECT_THAT(response_to(begin), AllOf(HasSubstr(" 408 "), HasSubstr("--read-seconds")));
}

// The next part is always there when the time is over.
TEST_F(ServerTest, ARequestOfManyPartsHasTheSameTime) {
  start({.body_bytes = 1'000'000'000, .read_seconds = 0.1});
  Connection connection(
      *server_, "POST /v1/words HTTP/1.1\r\n" + std::string(kJson) + "Content-Length: 1000000000\r\n\r\n");
  const std::string part(1 << 14, ' ');
  int parts = 0;
  while (parts < 20'000 && connection.send(part)) {
    ++parts;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(parts, 20'000) << "the request was read for more than twenty seconds";
}

TEST_F(ServerTest, OtherRequestsDoNotWaitForSlowOnes) {
  start({.threads = 2});
  std::vector<Connection> held;
  for (int i = 0; i < 3; ++i) held.emplace_back(*server_, post("/v1/held", "{}", "Connection: close\r\n"));
  wait_for_held(2);
  EXPECT_THAT(response_to("GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"),
              HasSubstr("modelet_requests_in_flight 3\n"))
      << "one of them waits for its turn";
  release();
  for (Connection& connection : held) EXPECT_THAT(statuses(connection.all()), ElementsAre("200"));
}

TEST_F(ServerTest, Token) {
  start({}, "0123456789abcdefghij");
  const auto request = [](const std::string& authorization) {
    return "GET /metrics HTTP/1.1\r\nConnection: close\r\nAuthorization: " + authorization + "\r\n\r\n";
  };
  EXPECT_THAT(response_to(request("Bearer 0123456789abcdefghij")), HasSubstr(" 200 "));
  EXPECT_THAT(response_to(request("Bearer 0123456789abcdefghix")),
              AllOf(HasSubstr(" 401 "), HasSubstr("WWW-Authenticate: Bearer\r\n")));
  EXPECT_THAT(response_to(kLastHealth), HasSubstr(" 200 "));
}

// The connection that has waited longest gives way: of the address that has its share, or of the one that has the most.
TEST_F(ServerTest, ConnectionsGiveWay) {
  start({.connections = 6, .connections_per_address = 4});
  const auto add = [&](std::vector<Connection>& connections, const char* from) {
    connections.emplace_back(*server_, kHealth, from);
    EXPECT_THAT(connections.back().some(), HasSubstr(" 200 "));
  };
  const auto closed = [](std::vector<Connection>& connections) {
    return std::ranges::count_if(connections, [](Connection& connection) { return connection.is_closed(); });
  };
  std::vector<Connection> one, others, more;
  for (int i = 0; i < 4; ++i) add(one, "127.0.0.1");
  EXPECT_EQ(closed(one), 0);
  one.emplace_back(*server_, "GET /heal");  // a request that does not end is no better than none
  wait_until([&] { return closed(one) == 1; });
  for (const char* from : {"127.0.0.2", "127.0.0.3", "127.0.0.4"}) add(others, from);
  wait_until([&] { return closed(one) == 2; });
  EXPECT_EQ(closed(others), 0);
  for (const char* from : {"127.0.0.5", "127.0.0.6", "127.0.0.7", "127.0.0.8"}) add(more, from);
  wait_until([&] { return closed(one) >= 4; });
  EXPECT_THAT(response_to(kLastHealth), HasSubstr(" 200 "));
}

TEST_F(ServerTest, ConnectionsWhoseRequestsAreHandledDoNotGiveWay) {
  start({.threads = 1, .connections = 3, .connections_per_address = 2});
  std::vector<Connection> held;
  for (int i = 0; i < 2; ++i) held.emplace_back(*server_, post("/v1/held", "{}", "Connection: close\r\n"));
  wait_for_held(1);
  // The second request has been read when another connection is refused.
  wait_until([&] {
    const std::string response = response_to(kLastHealth);
    return response.find(" 503 ") != std::string::npos &&
           response.find("--connections-per-address") != std::string::npos;
  });
  Connection other(*server_, kHealth, "127.0.0.2");
  EXPECT_THAT(other.some(), HasSubstr(" 200 "));
  release();
  for (Connection& connection : held) connection.all();
}

// A page of another site must not send requests, although its name leads to this address by now.
TEST_F(ServerTest, NamesOfTheMachine) {
  start({.hosts = {"models.example"}});
  const auto response = [&](const std::string& lines) {
    return response_to("GET /metrics HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n");
  };
  for (const std::string host : {"localhost", "LocalHost:80", "127.0.0.1:8080", "127.9.9.9", "[::1]",
                                 "[::1]:8080", "models.example:1"})
    EXPECT_THAT(statuses(response("Host: " + host + "\r\n")), ElementsAre("200")) << host;
  EXPECT_THAT(statuses(response("")), ElementsAre("200"));
  for (const std::string host : {"evil.example",
                                 "evil.example:8080",
                                 "localhost.evil.example",
                                 "127.0.0.1.evil.example",
                                 "0.0.0.0",
                                 "10.0.0.1",
                                 "",
                                 "[::]",
                                 "[",
                                 "::1",
                                 "other.models.example",
                                 "localhost:80@evil.example",
                                 "localhost:",
                                 "localhost:http",
                                 "localhost:99999",
                                 "localhost:80:80",
                                 "localhost:-1",
                                 "localhost.",
                                 "127.0.0.1:80 evil.example",
                                 "127.0.0.1:80@evil.example",
                                 "127.1",
                                 "0x7f000001",
                                 "[::1]evil.example",
                                 "[::1]:80@evil.example",
                                 "[::1",
                                 "[::1]:",
                                 "[127.0.0.1]",
                                 "[localhost]",
                                 "[models.example]",
                                 "models.example:evil",
                                 "user@localhost",
                                 ":80"})
    EXPECT_THAT(response("Host: " + host + "\r\n"), AllOf(HasSubstr(" 421 "), HasSubstr("--host"))) << host;
  EXPECT_THAT(statuses(response("Host: localhost\r\nHost: evil.example\r\n")), ElementsAre("400"));
  EXPECT_THAT(statuses(response_to(post("/v1/words", "{}", "Host: evil.example\r\n"))), ElementsAre("421"));
}

// What one program takes for a body, the next must not take for a request.
TEST_F(ServerTest, TransferCodings) {
  start();
  const std::string hidden = kHealth, length = "Content-Length: " + std::to_string(hidden.size()) + "\r\n";
  for (const std::string& fields :
       {"Transfer-Encoding: identity\r\n" + length, "Transfer-Encoding: xchunked\r\n" + length,
        length + "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: chunked\r\n" + length,
        std::string("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
        std::string("Transfer-Encoding: gzip\r\n"), "Transfer-Encoding: \r\n" + length,
        "Content-Length: 3\r\n" + length})
    for (const std::string line : {"POST /v1/words", "GET /healthz"})
      EXPECT_THAT(statuses(response_to(line + " HTTP/1.1\r\n" + kJson + fields + "\r\n" + hidden)),
                  ElementsAre("400"))
          << line << fields;
}

// A request that has begun is answered; idle connections are closed soon; new ones are not accepted.
TEST_F(ServerTest, AnOrderlyEnd) {
  start({.grace_seconds = 60});
  Connection idle(*server_, kHealth);
  EXPECT_THAT(idle.some(), HasSubstr(" 200 "));
  Connection begun = begin_request();
  std::atomic<bool> all_answered{false};
  std::thread stopping([&] { all_answered = server_->stop(); });
  EXPECT_EQ(idle.some(), "");
  begun.send("\"a\"");
  EXPECT_THAT(Connection(std::move(begun)).all(), AllOf(HasSubstr(" 200 "), HasSubstr("Connection: close")));
  stopping.join();
  EXPECT_TRUE(all_answered);
}

// Clients that send without a pause, and some that have just connected: no request is lost.
TEST_F(ServerTest, AnEndUnderLoad) {
  constexpr double kSlow = 0.5;  // seconds; the server waits at least so long for the next request
  start({.threads = 2, .grace_seconds = 600});
  std::array<std::atomic<int>, 8> answered{};
  const auto send_on = [&](std::atomic<int>& count) {
    Connection connection(*server_);
    for (std::optional<Stopwatch> since;;) {
      const double pause = since ? since->seconds() : 0;
      const bool sent = connection.send(post("/v1/words", "\"one two\""));
      const std::string response = sent ? connection.some() : "";
      if (response.empty()) {
        EXPECT_GT(pause, kSlow) << "a request was lost";
        return;
      }
      EXPECT_THAT(response, HasSubstr(" 200 "));
      ++count;
      since.emplace();
      if (response.find("Connection: close") != std::string::npos) return;
    }
  };
  std::vector<std::thread> clients;
  for (auto& count : answered) clients.emplace_back([&] { send_on(count); });
  wait_until([&] { return std::ranges::all_of(answered, [](const auto& count) { return count >= 2; }); });
  std::vector<Connection> late;
  for (int i = 0; i < 8; ++i) late.emplace_back(*server_, kHealth);
  std::atomic<bool> all_answered{false};
  std::thread stopping([&] { all_answered = server_->stop(); });
  for (Connection& connection : late)
    EXPECT_THAT(Connection(std::move(connection)).all(), HasSubstr(" 200 "));
  for (std::thread& client : clients) client.join();
  stopping.join();
  EXPECT_TRUE(all_answered);
}

TEST_F(ServerTest, TheEndOfGrace) {
  start({.read_seconds = 1000, .grace_seconds = 0.1});
  Connection begun = begin_request();
  EXPECT_FALSE(server_->stop());
  EXPECT_FALSE(Connection(*server_).connected());
  server_.reset();
  EXPECT_EQ(begun.some(), "");
}

// Requests that are handled, and one that waits for its turn.
TEST_F(ServerTest, ServersEndWithTheirRequests) {
  start({.threads = 1});
  std::vector<Connection> held;
  for (int i = 0; i < 2; ++i) held.emplace_back(*server_, post("/v1/held", "{}"));
  wait_for_held(1);
  wait_until([&] {
    return response_to("GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n").find("in_flight 2\n") !=
           std::string::npos;
  });
  std::thread releasing([this] { release(); });
  server_.reset();
  releasing.join();
}

TEST_F(ServerTest, Addresses) {
  start();
  Router open, closed({{.secret = "0123456789abcdefghij"}});
  const std::string taken = server_->endpoint().substr(std::string("http://").size());
  EXPECT_THAT(error_of([&] { Server(open, {.listen = taken}); }), HasSubstr("cannot listen there"));
  EXPECT_THAT(error_of([&] { check_listening({.listen = taken}, false); }), HasSubstr("cannot listen there"));
  for (const char* listen : {"8080", "127.0.0.1", "example.org:80", "127.0.0.1:65536", "127.0.0.1:", ""})
    EXPECT_THAT(error_of([&] { Server(closed, {.listen = listen}); }), HasSubstr("ADDRESS:PORT")) << listen;
  for (const char* listen : {"0.0.0.0:0", "[::]:0"}) {
    EXPECT_THAT(error_of([&] { Server(open, {.listen = listen}); }), HasSubstr("--token-file")) << listen;
    EXPECT_THAT(error_of([&] { check_listening({.listen = listen}, false); }), HasSubstr("--token-file"))
        << listen;
  }
  const Server everywhere(closed, {.listen = "0.0.0.0:0"});
  const Server named(open, {.listen = "localhost:0"});
  EXPECT_THAT(named.endpoint(), StartsWith("http://127.0.0.1:"));
}

}  // namespace
}  // namespace modelet::comm::http
