// Which peers get in, which do not, and what both sides are told.
#include "comm/security/curve.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/clock.h"
#include "comm/control/control.h"
#include "comm/transport/zmq.h"
#include "tests/comm/groups.h"

namespace modelet::comm {
namespace {

namespace fs = std::filesystem;
using control::ClientSocket;
using control::SchedulerAddress;
using control::ServerSocket;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kLimit = 20;  // seconds; only ends a test that would fail anyway

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// The log, in memory.
class Lines final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    text_.append(message.payload.begin(), message.payload.end());
    text_ += '\n';
  }
  void flush_() override {}

  std::string text_;
};

class CurveTest : public ::testing::Test {
 protected:
  CurveTest() : folder_(::testing::TempDir() + "modelet_curve_test") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    former_ = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", log_));
    allow("agent " + agent_.public_key + " office\nuser " + user_.public_key + " alice\n");
  }
  ~CurveTest() override {
    spdlog::set_default_logger(former_);
    fs::remove_all(folder_);
  }

  void allow(const std::string& text) { std::ofstream(allowed()) << text; }
  fs::path allowed() const { return folder_ / "allowed"; }

  std::unique_ptr<ServerSocket> server() {
    return std::make_unique<ServerSocket>("tcp://127.0.0.1:*", control::ServerKeys{scheduler_, allowed()});
  }
  SchedulerAddress address(const ServerSocket& server, const KeyPair& own) const {
    return {server.endpoint(), ClientKeys{own, scheduler_.public_key}};
  }

  // Sends ListRuns until the server has received it.
  static std::optional<ServerSocket::Received> exchange(ServerSocket& server, ClientSocket& client) {
    for (const Stopwatch watch; watch.seconds() < kLimit;) {
      client.send(control::ListRunsT{});
      client.receive(0.01);
      if (auto received = server.receive(0.01)) return received;
    }
    return std::nullopt;
  }
  // The error text of a client that is refused for good.
  static std::string refusal(ServerSocket& server, const SchedulerAddress& address) {
    ClientSocket client(address);
    try {
      const auto received = exchange(server, client);
      return received ? "let in" : "nothing happened";
    } catch (const Error& error) {
      return error.what();
    }
  }
  // The error text of a client, whether it is refused for good or not. Whether a side learns about the
  // security of the other before the connection is closed depends on two threads of ZeroMQ.
  static std::string complaint(ServerSocket& server, const SchedulerAddress& address) {
    ClientSocket client(address);
    try {
      for (const Stopwatch watch; client.trouble().empty() && watch.seconds() < kLimit;) {
        client.send(control::ListRunsT{});
        client.receive(0.01);
        if (server.receive(0.01)) return "let in";
      }
    } catch (const Error& error) {
      return error.what();
    }
    return client.trouble();
  }
  void wait_for_log(const std::string& text) {
    for (const Stopwatch watch; log_->text().find(text) == std::string::npos;) {
      ASSERT_LT(watch.seconds(), kLimit) << "not in the log: " << text << "\n" << log_->text();
      usleep(1000);
    }
  }

  const KeyPair scheduler_ = make_key_pair(), agent_ = make_key_pair(), user_ = make_key_pair();
  const std::shared_ptr<Lines> log_ = std::make_shared<Lines>();

 private:
  fs::path folder_;
  std::shared_ptr<spdlog::logger> former_;
};

TEST_F(CurveTest, ThisLibzmqHasCurve) { EXPECT_EQ(zmq_has("curve"), 1); }

TEST_F(CurveTest, WhoIsListedIsLetInAndKnown) {
  const auto scheduler = server();
  ClientSocket user(address(*scheduler, user_)), agent(address(*scheduler, agent_));
  auto received = exchange(*scheduler, user);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->sender.role, Role::kUser);
  EXPECT_EQ(received->sender.name, "alice");
  EXPECT_EQ(scheduler->send(received->peer, control::AcceptedT{{}, 7}), control::ServerSocket::Sent::kQueued);
  const auto answer = user.receive(kLimit);
  ASSERT_TRUE(answer);
  EXPECT_EQ(std::get<control::AcceptedT>(*answer).run, 7u);
  EXPECT_EQ(user.trouble(), "");
  while (scheduler->receive(0.05)) {  // drops what the user sent more than once
  }
  received = exchange(*scheduler, agent);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->sender.role, Role::kAgent);
  EXPECT_EQ(received->sender.name, "office");
}

TEST_F(CurveTest, AnUnknownKeyIsRefusedAndBothSidesSayWhy) {
  const auto scheduler = server();
  const KeyPair stranger = make_key_pair();
  EXPECT_THAT(refusal(*scheduler, address(*scheduler, stranger)),
              AllOf(HasSubstr("the scheduler at " + scheduler->endpoint() + " does not know this key"),
                    HasSubstr("'agent " + stranger.public_key + " NAME'"), HasSubstr("allow-list")));
  wait_for_log("refused key " + stranger.public_key + " from 127.0.0.1: it is not in " + allowed().string());
  // Once the key is listed, it gets in without any restart.
  allow("user " + stranger.public_key + " bob\n");
  EXPECT_EQ(refusal(*scheduler, address(*scheduler, stranger)), "let in");
}

TEST_F(CurveTest, AStrangerIsHeardAndMaySendNothingLarge) {
  ServerSocket scheduler("tcp://127.0.0.1:*",
                         control::ServerKeys{.own = scheduler_, .allow_list = allowed(), .hears_strangers = true});
  ClientSocket stranger(address(scheduler, make_key_pair()));
  const auto heard = exchange(scheduler, stranger);
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->sender.role, Role::kNobody);
  control::RegisterT large;
  large.name.assign(16 << 10, 'x');
  for (const Stopwatch watch; log_->text().find("its key is not known, and it sends") == std::string::npos;) {
    ASSERT_LT(watch.seconds(), kLimit) << log_->text();
    stranger.send(large);
    stranger.receive(0.01);
    const auto received = scheduler.receive(0.01);
    EXPECT_FALSE(received && std::holds_alternative<control::RegisterT>(received->message));
  }
  EXPECT_EQ(refusal(scheduler, address(scheduler, user_)), "let in");
}

TEST_F(CurveTest, AConnectionLosesItsRightsWithItsKey) {
  const auto scheduler = server();
  ClientSocket user(address(*scheduler, user_));
  ASSERT_TRUE(exchange(*scheduler, user));
  while (scheduler->receive(0.05)) {
  }
  allow("agent " + agent_.public_key + " office\n");
  // A list that has just changed may still be being written, and takes nobody's rights.
  fs::last_write_time(allowed(), fs::last_write_time(allowed()) - std::chrono::minutes(1));
  const auto received = exchange(*scheduler, user);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->sender.role, Role::kNobody);
}

TEST_F(CurveTest, AWrongServerKeyIsToldToBothSides) {
  const auto scheduler = server();
  const KeyPair other = make_key_pair();
  ClientSocket client({scheduler->endpoint(), ClientKeys{user_, other.public_key}});
  for (const Stopwatch watch; client.trouble().empty() && watch.seconds() < kLimit;) {
    EXPECT_FALSE(client.send(control::ListRunsT{}));
    client.receive(0.01);
  }
  EXPECT_THAT(client.trouble(),
              AllOf(HasSubstr(scheduler->endpoint() + " does not have the key " + other.public_key),
                    HasSubstr("--scheduler-key")));
  wait_for_log("no connection with 127.0.0.1:");
  wait_for_log("it expects another key of this server");
}

TEST_F(CurveTest, WhoHasNoKeyIsTold) {
  const auto scheduler = server();
  EXPECT_THAT(complaint(*scheduler, scheduler->endpoint()),
              AllOf(HasSubstr("wants a key"), HasSubstr("--key FILE")));
  wait_for_log("uses no keys");
}

TEST_F(CurveTest, WhoHasAKeyForASchedulerWithoutIsTold) {
  ServerSocket scheduler("tcp://127.0.0.1:*");
  EXPECT_THAT(complaint(scheduler, address(scheduler, user_)),
              AllOf(HasSubstr("uses no keys"), HasSubstr("leave out --key")));
}

// Some connections begin like CURVE and go on as noise, others are noise from the start.
TEST_F(CurveTest, GarbageDoesNoHarm) {
  const auto scheduler = server();
  std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE", 17);
  greeting.resize(64);
  std::string hello = greeting + std::string("\x04\xc8\x05HELLO\1\0", 10);
  hello.resize(greeting.size() + 202);
  sockaddr_in where{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  where.sin_port = htons(
      static_cast<uint16_t>(std::stoi(scheduler->endpoint().substr(scheduler->endpoint().rfind(':') + 1))));
  Rng rng(11);
  for (int i = 0; i < 300; ++i) {
    std::string noise = hello;
    if (i % 3 == 0) noise = greeting + noise.substr(greeting.size(), rng.below(202));
    const size_t from = i % 2 == 0 ? 64 : 0;
    for (uint32_t flips = rng.below(6); flips > 0; --flips)
      noise[from + rng.below(static_cast<uint32_t>(noise.size() - from))] = static_cast<char>(rng.next());
    if (i % 10 == 0)
      for (char& c : noise) c = static_cast<char>(rng.next());
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&where), sizeof where), 0);
    (void)!::send(fd, noise.data(), noise.size(), MSG_NOSIGNAL);
    ::close(fd);
  }
  EXPECT_EQ(scheduler->receive(0.05), std::nullopt);
  EXPECT_EQ(refusal(*scheduler, address(*scheduler, user_)), "let in");
  const std::string log = log_->text();
  EXPECT_LT(std::count(log.begin(), log.end(), '\n'), 40) << "whoever makes noise must not fill the disk";
}

// ---- what a peer may take

// A TCP connection that does not use ZeroMQ at this end.
class RawConnection {
 public:
  explicit RawConnection(const std::string& endpoint) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in where{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    where.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&where), sizeof where) != 0)
      throw Error(errno_text(endpoint));
  }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;
  ~RawConnection() { ::close(fd_); }

  bool send(const std::string& bytes) {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = ::send(fd_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }
  void hear(size_t bytes) const {
    std::array<char, 256> heard{};
    for (ssize_t n = 0; bytes > 0 && (n = ::recv(fd_, heard.data(), heard.size(), 0)) > 0;)
      bytes -= std::min(bytes, static_cast<size_t>(n));
  }
  // Also reads the greeting of the server.
  bool ended() const {
    std::array<char, 256> greeting{};
    for (;;) {
      const ssize_t n = ::recv(fd_, greeting.data(), greeting.size(), MSG_DONTWAIT);
      if (n <= 0) return n == 0 || errno != EAGAIN;
    }
  }

 private:
  const int fd_;
};

TEST_F(CurveTest, SilentConnectionsKeepNobodyOut) {
  const auto scheduler = server();
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<RawConnection>(scheduler->endpoint()));
  const auto ended = [&] {
    return std::ranges::count_if(silent, [](const auto& one) { return one->ended(); });
  };
  const auto kept = static_cast<ptrdiff_t>(ConnectionLimits{}.silent_of_address);
  for (const Stopwatch watch; ended() < 300 - kept; usleep(1000))
    ASSERT_LT(watch.seconds(), kLimit) << ended();
  EXPECT_TRUE(silent.front()->ended()) << "the oldest go first";
  EXPECT_EQ(refusal(*scheduler, address(*scheduler, user_)), "let in");
  wait_for_log("connections from its address that sent nothing");
}

// Emulators of other processors may not pass the question on.
bool kernel_counts_bytes() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  tcp_info info{};
  socklen_t size = sizeof info;
  const bool counts = ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && size == sizeof info;
  ::close(fd);
  return counts;
}

// libzmq sends only complete messages, but other peers may not. The bytes follow ZMTP 3.0 (RFC 23).
TEST_F(CurveTest, AMessageWithoutEndEndsTheConnection) {
  if (!kernel_counts_bytes()) GTEST_SKIP() << "TCP_INFO is not available here";
  ServerSocket scheduler("tcp://127.0.0.1:*");
  RawConnection flood(scheduler.endpoint());
  std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL", 16);
  greeting.resize(64);
  ASSERT_TRUE(flood.send(greeting + std::string("\x04\x1c\x05READY\x0bSocket-Type\0\0\0\6DEALER", 30)));
  flood.hear(greeting.size() + 1);              // the handshake is over
  std::string part("\3\0\0\0\0\0\x10\0\0", 9);  // 1 MiB, and more parts follow
  part.resize(part.size() + (1 << 20), 'x');
  int parts = 0;
  while (parts < 4000 && flood.send(part)) ++parts;
  EXPECT_LT(parts, 4000) << "all of them were taken";
  wait_for_log("bytes without a whole message");
  EXPECT_EQ(refusal(scheduler, scheduler.endpoint()), "let in");
}

// A peer that asks on but reads no answer. It keeps sending, so ZeroMQ does not take it for dead.
TEST_F(CurveTest, AnswersThatNobodyReadsEndTheConnection) {
  if (!kernel_counts_bytes()) GTEST_SKIP() << "TCP_INFO is not available here";
  ServerSocket scheduler("tcp://127.0.0.1:*");
  zmq::context_t context;
  zmq::socket_t deaf(context, zmq::socket_type::dealer);
  deaf.set(zmq::sockopt::rcvhwm, 1);
  deaf.set(zmq::sockopt::linger, 0);
  deaf.connect(scheduler.endpoint());
  const std::string question = control::encode(control::ToSchedulerMessage(control::ListRunsT{}));
  int answers = 0;
  for (const Stopwatch watch; log_->text().find("a peer that does not read") == std::string::npos;) {
    ASSERT_LT(watch.seconds(), kLimit) << "more and more answers wait";
    deaf.send(zmq::buffer(question), zmq::send_flags::dontwait);
    const auto received = scheduler.receive(0.1);
    constexpr int kEnough = 100;
    if (!received || answers == kEnough) continue;
    control::RunLogT answer;
    answer.text.assign(1 << 20, 'x');
    scheduler.send(received->peer, answer);
    ++answers;
  }
  EXPECT_EQ(refusal(scheduler, scheduler.endpoint()), "let in");
}

// All bytes together are far more than may wait.
TEST_F(CurveTest, AnswersThatAreReadMayBeMany) {
  const auto scheduler = server();
  ClientSocket user(address(*scheduler, user_));
  constexpr int kMessages = 60;
  for (int i = 0; i < kMessages; ++i) {
    const auto question = exchange(*scheduler, user);
    ASSERT_TRUE(question);
    control::RunLogT answer;
    answer.text.assign(1 << 20, 'x');
    ASSERT_EQ(scheduler->send(question->peer, answer), ServerSocket::Sent::kQueued);
    for (const Stopwatch watch; !user.receive(0.1);) ASSERT_LT(watch.seconds(), kLimit);
  }
  EXPECT_THAT(log_->text(), ::testing::Not(HasSubstr("does not read")));
}

TEST_F(CurveTest, LargeMessagesWithAnEndAreTaken) {
  const auto scheduler = server();
  ClientSocket user(address(*scheduler, user_));
  ASSERT_TRUE(exchange(*scheduler, user));
  while (scheduler->receive(0.05)) {
  }
  constexpr int kMessages = 40;
  int received = 0;
  for (int sent = 0; received < kMessages;) {  // while one message is read, the next is on its way
    control::SubmitT submit;
    submit.experiment.assign(control::kMaxControlBytes / 2, 'x');
    if (sent - received < 2 && sent < kMessages) sent += user.send(std::move(submit));
    received += scheduler->receive(0.01).has_value();
  }
  EXPECT_THAT(log_->text(), ::testing::Not(HasSubstr("without a whole message")));
}

// ---- who a peer is

// A ZeroMQ client that chooses its routing id.
class Claiming {
 public:
  Claiming(const std::string& endpoint, const std::string& id, const KeyPair* own = nullptr,
           const std::string& server_key = "") {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::routing_id, id);
    if (own != nullptr) use_curve_client(socket_, *own, server_key);
    socket_.connect(endpoint);
    socket_.send(zmq::buffer(control::encode(control::ToSchedulerMessage(control::ListRunsT{}))));
  }
  bool has_heard() {
    zmq::message_t answer;
    return socket_.recv(answer, zmq::recv_flags::dontwait).has_value();
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_{context_, zmq::socket_type::dealer};
};

TEST_F(CurveTest, NobodyTakesThePlaceOfAPeerThatHasGone) {
  for (const bool keys : {true, false}) {
    const auto scheduler = keys ? server() : std::make_unique<ServerSocket>("tcp://127.0.0.1:*");
    std::optional<ServerSocket::Received> gone;
    {
      ClientSocket user(keys ? address(*scheduler, user_) : SchedulerAddress(scheduler->endpoint()));
      ASSERT_TRUE(gone = exchange(*scheduler, user));
    }
    for (const Stopwatch watch; scheduler->send(gone->peer, control::AliveT{}) != ServerSocket::Sent::kGone;
         usleep(1000))
      ASSERT_LT(watch.seconds(), kLimit);
    while (scheduler->receive(0.05)) {
    }
    // She tries again, because ZeroMQ ignores her if it has not forgotten the former peer yet.
    std::optional<Claiming> eve;
    std::optional<ServerSocket::Received> received;
    for (const Stopwatch watch; !received && watch.seconds() < kLimit;) {
      // ZeroMQ's own ids have five bytes.
      eve.emplace(scheduler->endpoint(), gone->peer.substr(0, 5), keys ? &agent_ : nullptr,
                  scheduler_.public_key);
      for (const Stopwatch attempt; !received && attempt.seconds() < 1;) received = scheduler->receive(0.05);
    }
    ASSERT_TRUE(received) << "she was never let in";
    EXPECT_NE(received->peer, gone->peer);
    EXPECT_EQ(scheduler->send(gone->peer, control::AliveT{}), ServerSocket::Sent::kGone);
    EXPECT_FALSE(eve->has_heard()) << "what was meant for the peer that has gone";
  }
}

TEST_F(CurveTest, WhoChoosesARoutingIdIsShutOut) {
  const auto scheduler = server();
  Claiming eve(scheduler->endpoint(), std::string("\0abcd", 5), &user_, scheduler_.public_key);
  Claiming mallory(scheduler->endpoint(), "mallory", &user_, scheduler_.public_key);
  for (const Stopwatch watch; log_->text().find("(number 2)") == std::string::npos;) {
    ASSERT_LT(watch.seconds(), kLimit) << log_->text();
    EXPECT_EQ(scheduler->receive(0.01), std::nullopt) << "a message of it came through";
  }
  EXPECT_THAT(log_->text(), HasSubstr("it chooses its own routing id"));
  EXPECT_EQ(refusal(*scheduler, address(*scheduler, agent_)), "let in");
}

TEST_F(CurveTest, AKeyMayMakeOnlySoManyConnectionsASecond) {
  zmq::context_t context;
  zmq::socket_t pull(context, zmq::socket_type::pull);
  const auto gate = std::make_unique<Authenticator>(context, pull, "test");
  use_curve_server(pull, scheduler_);
  gate->open({.made_at_once = 3, .made_per_second = 1e-6},
             [](const std::string&) { return Authenticator::Verdict{}; });
  pull.bind("tcp://127.0.0.1:*");
  zmq::context_t others;
  std::vector<zmq::socket_t> sockets;
  for (int i = 0; i < 5; ++i) {
    zmq::socket_t& socket = sockets.emplace_back(others, zmq::socket_type::push);
    socket.set(zmq::sockopt::linger, 0);
    use_curve_client(socket, i < 4 ? user_ : agent_, scheduler_.public_key);
    socket.connect(pull.get(zmq::sockopt::last_endpoint));
  }
  wait_for_log("refused key " + user_.public_key + " from 127.0.0.1: its key makes more than");
  for (const Stopwatch watch; gate->let_in() < 4; usleep(1000)) ASSERT_LT(watch.seconds(), kLimit);
  EXPECT_THAT(log_->text(), ::testing::Not(HasSubstr("refused key " + agent_.public_key)));
  EXPECT_EQ(gate->let_in(), 4u);
  sockets.clear();
  pull.close();
}

TEST(ConnectionsTest, EndsWhatStaysSilent) {
  int ends[2], spoken[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, spoken), 0);
  Connections connections("test", {.silent_seconds = 10, .unread_bytes = 100, .all_unread_bytes = 100});
  connections.accepted(ends[0]);
  connections.accepted(spoken[0]);
  connections.look(100);
  connections.read(spoken[0], 1, "key", 1);
  connections.look(109);
  const auto has_ended = [](int fd) {
    char byte = 0;
    return ::recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
  };
  EXPECT_FALSE(has_ended(ends[1]));
  connections.look(111);
  EXPECT_TRUE(has_ended(ends[1]));
  EXPECT_FALSE(has_ended(spoken[1]));
  for (const int fd : {ends[0], ends[1], spoken[0], spoken[1]}) ::close(fd);
}

TEST(ConnectionsTest, StrangersShareTheConnectionsOfOneKey) {
  Connections connections("test", {.of_key = 2});
  int ends[3][2];
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]), 0);
    connections.accepted(ends[i][0]);
    connections.read(ends[i][0], 1, "key " + std::to_string(i), i + 1, true);
    char byte = 0;
    EXPECT_EQ(::recv(ends[i][1], &byte, 1, MSG_DONTWAIT) == 0, i == 2) << "the third with a key that nobody knows";
  }
  for (const auto& pair : ends)
    for (const int fd : pair) ::close(fd);
}

TEST(ConnectionsTest, LimitsConnectionsOfAnAddressAndOfAKey) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof where;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&where), sizeof where), 0);
  ASSERT_EQ(::listen(listener, 10), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&where), &size), 0);
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(ntohs(where.sin_port));
  std::vector<std::unique_ptr<RawConnection>> peers;
  std::vector<int> accepted;
  Connections connections("test", {.of_address = 4, .of_key = 2});
  const auto connect = [&] {
    peers.push_back(std::make_unique<RawConnection>(endpoint));
    accepted.push_back(::accept(listener, nullptr, nullptr));
    connections.accepted(accepted.back());
  };
  for (int i = 0; i < 4; ++i) connect();
  for (int i = 0; i < 3; ++i)
    connections.read(accepted[static_cast<size_t>(i)], 10, i == 1 ? "other" : "key",
                     static_cast<uint64_t>(i + 1));
  for (const auto& peer : peers) EXPECT_FALSE(peer->ended());
  connections.read(accepted[3], 10, "key", 4);
  EXPECT_TRUE(peers[3]->ended()) << "the third with one key";
  ::close(std::exchange(accepted[3], -1));
  EXPECT_FALSE(peers[3]->send("x")) << "ended with a reset: nothing more is taken";
  connect();  // one has gone
  EXPECT_FALSE(peers[4]->ended());
  connect();
  EXPECT_TRUE(peers[5]->ended()) << "the fifth from one address";
  EXPECT_NE(connections.ended(accepted[4]), "");
  connect();
  EXPECT_FALSE(peers[6]->ended());
  EXPECT_TRUE(connections.is_open(2));
  EXPECT_FALSE(connections.is_open(4)) << "it was shut";
  connections.refuse(accepted[1], 99, "test");
  EXPECT_TRUE(connections.is_open(2)) << "the descriptor is not that of the one to refuse any more";
  connections.refuse(accepted[1], 2, "test");
  EXPECT_FALSE(connections.is_open(2));
  EXPECT_TRUE(peers[1]->ended());
  for (const int fd : accepted)
    if (fd >= 0) ::close(fd);
  ::close(listener);
}

// ---- data sockets

// Rank 0 of 3; the other ranks are played by hand, with keys that the group knows.
class DataSocketTest : public CurveTest {
 protected:
  DataSocketTest() {
    const Peer ranks[] = {
        zero_.self(), {"tcp://127.0.0.1:1", one_.public_key}, {"tcp://127.0.0.1:1", two_.public_key}};
    zero_.connect(0, ranks, 1, 1);
  }

  // A socket like that of a rank. If `own` is null, it uses no keys.
  zmq::socket_t sender(const KeyPair* own) {
    zmq::socket_t socket(context_, zmq::socket_type::push);
    if (own != nullptr) use_curve_client(socket, *own, zero_.self().public_key);
    socket.set(zmq::sockopt::linger, 500);
    return socket;
  }
  void send_over(zmq::socket_t& socket) {
    socket.send(zmq::str_buffer("envelope"), zmq::send_flags::sndmore);
    socket.send(zmq::str_buffer("gradients"));
  }
  void send(const KeyPair* own) {
    zmq::socket_t socket = sender(own);
    socket.connect(zero_.self().endpoint);
    send_over(socket);
    sockets_.push_back(std::move(socket));
  }

  const KeyPair one_ = make_key_pair(), two_ = make_key_pair();
  ZmqTransport zero_{{.linger_seconds = 0, .curve = true}};
  zmq::context_t context_;
  std::vector<zmq::socket_t> sockets_;
};

TEST_F(DataSocketTest, TakesWhatItsRanksSend) {
  send(&one_);
  Frame frame;
  ASSERT_TRUE(zero_.receive(kLimit, frame));
  EXPECT_EQ(frame.from, 1);
  EXPECT_EQ(frame.payload.size(), 9u);
}

TEST_F(DataSocketTest, SilentStrangersEndNoConnectionOfARank) {
  zmq::socket_t rank = sender(&one_);
  HandshakeMonitor monitor(context_, rank, HandshakeMonitor::Side::kClient);
  rank.connect(zero_.self().endpoint);
  send_over(rank);
  Frame frame;
  ASSERT_TRUE(zero_.receive(kLimit, frame));
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<RawConnection>(zero_.self().endpoint));
  wait_for_log("connections from its address that sent nothing");
  send_over(rank);
  ASSERT_TRUE(zero_.receive(kLimit, frame));
  EXPECT_EQ(frame.from, 1);
  while (const auto event = monitor.next()) EXPECT_EQ(event->kind, HandshakeMonitor::Kind::kSucceeded);
}

TEST_F(DataSocketTest, ManyRanksBehindOneAddressAreLetIn) {
  constexpr size_t kRanks = 81;
  ZmqTransport zero({.linger_seconds = 0, .curve = true});
  std::vector<KeyPair> keys(kRanks);
  std::vector<Peer> ranks = {zero.self()};
  for (size_t rank = 1; rank < kRanks; ++rank) {
    keys[rank] = make_key_pair();
    ranks.push_back({"tcp://127.0.0.1:1", keys[rank].public_key});
  }
  zero.connect(0, ranks, 1, 1);
  std::vector<std::unique_ptr<HandshakeMonitor>> monitors;
  for (size_t rank = 1; rank < kRanks; ++rank) {
    zmq::socket_t socket(context_, zmq::socket_type::push);
    monitors.push_back(std::make_unique<HandshakeMonitor>(context_, socket, HandshakeMonitor::Side::kClient));
    use_curve_client(socket, keys[rank], zero.self().public_key);
    socket.connect(zero.self().endpoint);
    sockets_.push_back(std::move(socket));
  }
  // All are connected before any of them sends.
  for (const auto& monitor : monitors) {
    std::optional<HandshakeMonitor::Event> event;
    for (const Stopwatch watch; !(event = monitor->next()); usleep(1000)) ASSERT_LT(watch.seconds(), kLimit);
    EXPECT_EQ(event->kind, HandshakeMonitor::Kind::kSucceeded);
  }
  for (const auto& monitor : monitors) EXPECT_FALSE(monitor->next());
  EXPECT_THAT(log_->text(), ::testing::Not(HasSubstr("sent nothing")));
}

TEST_F(DataSocketTest, RefusesAStranger) {
  const KeyPair stranger = make_key_pair();
  send(&stranger);
  wait_for_log("refused key " + stranger.public_key + " from 127.0.0.1: it is of no rank of this run");
  send(nullptr);
  wait_for_log("uses no keys");
  Frame frame;
  EXPECT_FALSE(zero_.receive(0.05, frame));
  EXPECT_EQ(zero_.dropped_messages(), 0u) << "nothing of them came this far";
}

// Whatever a message says, the key is that of rank 2.
TEST_F(DataSocketTest, ARankCannotSpeakForAnother) {
  zmq::socket_t socket = sender(&two_);
  socket.connect(zero_.self().endpoint);
  socket.send(zmq::str_buffer("0000000000000001/1/1"), zmq::send_flags::sndmore);
  send_over(socket);
  send_over(socket);
  Frame frame;
  ASSERT_FALSE(zero_.receive(0.01, frame) && frame.from == 1);
  for (const Stopwatch watch; frame.from < 0 && watch.seconds() < kLimit;) zero_.receive(0.01, frame);
  EXPECT_EQ(frame.from, 2);
  EXPECT_EQ(zero_.dropped_messages(), 1u) << "that with a name in front";
}

// ZeroMQ lets a peer choose the id under which a ROUTER knows it. An id that ZeroMQ gives itself later would end
// the process.
TEST_F(DataSocketTest, APeerThatChoosesARoutingIdIsNotLetIn) {
  zmq::socket_t other(context_, zmq::socket_type::dealer);
  other.set(zmq::sockopt::linger, 0);
  use_curve_client(other, two_, zero_.self().public_key);
  other.set(zmq::sockopt::routing_id, std::string("\0abcd", 5));
  other.connect(zero_.self().endpoint);
  send_over(other);
  send(&one_);
  Frame frame;
  ASSERT_TRUE(zero_.receive(kLimit, frame));
  EXPECT_EQ(frame.from, 1);
  EXPECT_FALSE(zero_.receive(0.1, frame));
  EXPECT_EQ(zero_.dropped_messages(), 0u);
}

TEST_F(DataSocketTest, ARankThatIsRefusedHearsOfIt) {
  ZmqTransport other({.linger_seconds = 0, .curve = true});  // its key is not the one that rank 0 was told
  const Peer ranks[] = {zero_.self(), other.self()};
  other.connect(1, ranks, 1, 1);
  Frame frame;
  try {
    testing::send_bytes(other, 0, bytes_of("x"), {});  // rank 0 may have refused already
    other.receive(kLimit, frame);
    FAIL() << "nothing happened";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.rank(), 0);
    EXPECT_THAT(error.what(), HasSubstr(other.self().public_key));
  }
}

TEST_F(DataSocketTest, AllRanksHaveKeysOrNone) {
  ZmqTransport plain, curve({.curve = true});
  const Peer ranks[] = {plain.self(), curve.self()};
  EXPECT_THROW(plain.connect(0, ranks, 1, 1), Error);
  EXPECT_THROW(curve.connect(1, ranks, 1, 1), Error);
}

}  // namespace
}  // namespace modelet::comm
