// Endpoints: what is refused, and sockets over IPv4 and IPv6.
#include "comm/transport/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>
#include <zmq.hpp>

#include "base/error.h"
#include "tests/error_of.h"

namespace modelet::comm {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Endpoint, IsRefusedWithTheReason) {
  const auto refusal = [](const char* endpoint, bool to_listen) {
    try {
      check_endpoint(endpoint, to_listen);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const char* good : {"tcp://127.0.0.1:1", "tcp://office-17:65535", "tcp://[::1]:5570",
                           "tcp://[fe80::1%eth0]:5570", "ipc:///tmp/x"})
    for (const bool to_listen : {false, true}) EXPECT_EQ(refusal(good, to_listen), "") << good;
  EXPECT_EQ(refusal("tcp://127.0.0.1:*", true), "");
  EXPECT_THAT(refusal("tcp://127.0.0.1:*", false), HasSubstr("1 to 65535"));
  const std::pair<const char*, const char*> wrong[] = {
      {"", "tcp://"},
      {"127.0.0.1:5570", "tcp://"},
      {"http://127.0.0.1:5570", "tcp://"},
      {"inproc://x", "tcp://"},
      {"ipc://", "tcp://"},
      {"tcp://127.0.0.1", "a host and a port"},
      {"tcp://:5570", "a host and a port"},
      {"tcp://127.0.0.1:", "1 to 65535"},
      {"tcp://127.0.0.1:0", "1 to 65535"},
      {"tcp://127.0.0.1:65536", "1 to 65535"},
      {"tcp://127.0.0.1:99999999999999999999", "1 to 65535"},
      {"tcp://127.0.0.1:-1", "1 to 65535"},
      {"tcp://127.0.0.1:5570x", "1 to 65535"},
      {"tcp://::1:5570", "brackets"},
      {"tcp://[::1:5570", "brackets"},
  };
  for (const auto& [endpoint, why] : wrong)
    for (const bool to_listen : {false, true})
      EXPECT_THAT(refusal(endpoint, to_listen), AllOf(HasSubstr(std::string("'") + endpoint + "'"),
                                                      HasSubstr("tcp://127.0.0.1:5570"), HasSubstr(why)))
          << endpoint;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose threads take other memory
// Without memory for the stack of a thread; a limit of threads would not hold for root. ZeroMQ starts its threads with
// the first socket, and ends the process if it gets none.
void open_socket_without_threads() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<uint64_t>(::getpagesize()) + (rlim_t{4} << 20);
  const rlimit limit{most, most};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(9);
  try {
    zmq::context_t context = make_context();
    const zmq::socket_t socket(context, zmq::socket_type::dealer);
  } catch (const std::system_error& error) {
    std::_Exit(error.code() == std::errc::resource_unavailable_try_again ? 1 : 2);
  }
  std::_Exit(0);
}

TEST(Endpoint, ThreadsAreTriedBeforeZeroMqNeedsThem) {
  EXPECT_EXIT(open_socket_without_threads(), testing::ExitedWithCode(1), "");
}
#endif

// What ZeroMQ would refuse to connect to is refused by the check as well, so that whoever passes an address on can know.
TEST(Endpoint, NoneIsAcceptedThatCannotBeConnectedTo) {
  zmq::context_t context;
  for (const std::string& endpoint :
       {"ipc://" + std::string(108, 'x'), std::string("ipc://@"), std::string("ipc://*"),
        std::string("tcp://a b:1"), std::string("tcp://a@b:1"), std::string("tcp://a/b:1"),
        std::string("tcp://-a:1"), std::string("tcp://.a:1"), std::string("tcp://*:1"),
        std::string("tcp://a;b:1"), std::string("tcp://[]:1"), std::string("tcp://[x]:1"),
        std::string("tcp://%:1"), std::string("tcp://a_b:1"), std::string("tcp://ä:1"),
        std::string("tcp://[::1%eth0]:1")}) {
    zmq::socket_t socket(context, zmq::socket_type::push);
    bool connects = true;
    try {
      socket.connect(endpoint);
    } catch (const zmq::error_t&) {
      connects = false;
    }
    bool accepted = true;
    try {
      check_endpoint(endpoint, false);
    } catch (const UsageError&) {
      accepted = false;
    }
    EXPECT_LE(accepted, connects) << endpoint;
  }
  EXPECT_NO_THROW(check_endpoint("ipc://" + std::string(107, 'x'), false));
  EXPECT_THAT(error_of([] { check_endpoint("ipc:///" + std::string(92, 'x') + "/*", true); }),
              HasSubstr("at most 107 bytes, this one 110"));
}

TEST(Endpoint, MessagesArriveOverBothProtocols) {
  zmq::context_t context;
  for (const char* own : {"tcp://127.0.0.1:*", "tcp://[::1]:*"}) {
    zmq::socket_t server(context, zmq::socket_type::pull), client(context, zmq::socket_type::push);
    try {
      listen_at(server, own);
    } catch (const UsageError& error) {
      EXPECT_THAT(own, HasSubstr("::1")) << error.what();
      GTEST_SKIP() << "this machine has no IPv6: " << error.what();
    }
    connect_to(client, server.get(zmq::sockopt::last_endpoint));
    client.send(zmq::str_buffer("hello"), zmq::send_flags::none);
    zmq::message_t message;
    ASSERT_TRUE(server.recv(message));
    EXPECT_EQ(message.to_string_view(), "hello");
  }
}

TEST(Endpoint, OfAnotherMachineOrInUse) {
  zmq::context_t context;
  zmq::socket_t first(context, zmq::socket_type::pull), second(context, zmq::socket_type::pull);
  for (const char* foreign : {"tcp://192.0.2.7:*", "tcp://no-such-device:*", "tcp://office-17.invalid:*"})
    EXPECT_THAT(error_of([&] { listen_at(first, foreign); }),
                AllOf(HasSubstr(foreign), HasSubstr("of this machine")));
  listen_at(first, "tcp://127.0.0.1:*");
  const std::string taken = first.get(zmq::sockopt::last_endpoint);
  EXPECT_THAT(error_of([&] { listen_at(second, taken); }), AllOf(HasSubstr(taken), HasSubstr("in use")));
}

TEST(Endpoint, TheAddressOnTheWay) {
  EXPECT_EQ(address_on_the_way_to("tcp://127.0.0.1:5570"), "127.0.0.1");
  EXPECT_EQ(address_on_the_way_to("tcp://localhost:5570"), "127.0.0.1");
  EXPECT_EQ(address_on_the_way_to("ipc:///tmp/x"), "127.0.0.1");
  // That a name is not known now, or that there is no route, does not make the address wrong. (A socket connects
  // to the broadcast address only if it has asked for that.)
  for (const std::string nowhere : {"tcp://office-17.invalid:1", "tcp://255.255.255.255:1"}) {
    try {
      address_on_the_way_to(nowhere);
      ADD_FAILURE() << "found one";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kFailed) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("no way from this machine to " + nowhere));
    }
  }
}

TEST(Endpoint, Loopback) {
  for (const char* inside :
       {"tcp://127.0.0.1:5570", "tcp://127.9.9.9:*", "tcp://localhost:1", "tcp://[::1]:80", "ipc:///tmp/x"})
    EXPECT_TRUE(is_loopback(inside)) << inside;
  for (const char* outside :
       {"tcp://0.0.0.0:5570", "tcp://*:5570", "tcp://192.168.1.5:1", "tcp://127.0.0.1.example.org:1",
        "tcp://128.0.0.1:1", "tcp://[::]:1", "tcp://eth0:1", "tcp://127.0.0.1", "pgm://127.0.0.1:1", ""})
    EXPECT_FALSE(is_loopback(outside)) << outside;
}

TEST(Endpoint, WithoutKeysOnlyIfAskedFor) {
  for (const char* endpoint : {"tcp://0.0.0.0:1", "tcp://127.0.0.1:1", "tcp://[::1]:1"}) {
    EXPECT_THAT(error_of([&] { require_keys(endpoint, false, false, "x", "--y"); }),
                AllOf(HasSubstr(endpoint), HasSubstr("--y"), HasSubstr("--insecure")));
    EXPECT_NO_THROW(require_keys(endpoint, false, true, "x", "--y"));
    EXPECT_NO_THROW(require_keys(endpoint, true, false, "x", "--y"));
  }
}

TEST(Endpoint, AFolderThatIsClosedToOthersNeedsNoKeys) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "closed";
  std::filesystem::create_directories(folder);
  const std::string endpoint = "ipc://" + folder.string() + "/*";
  for (const auto& [mode, closed] : {std::pair{0700, true}, {0701, false}, {0755, false}, {0770, false}}) {
    ASSERT_EQ(::chmod(folder.c_str(), static_cast<mode_t>(mode)), 0);
    EXPECT_EQ(is_private(endpoint), closed) << mode;
    if (closed)
      EXPECT_NO_THROW(require_keys(endpoint, false, false, "x", "--y"));
    else
      EXPECT_THROW(require_keys(endpoint, false, false, "x", "--y"), UsageError) << mode;
  }
  EXPECT_FALSE(is_private("ipc:///nonexistent/x"));
  EXPECT_FALSE(is_private("tcp://127.0.0.1:1"));
}

TEST(Endpoint, AFreeNameInAFolder) {
  zmq::context_t context;
  zmq::socket_t servers[] = {{context, zmq::socket_type::pull}, {context, zmq::socket_type::pull}};
  zmq::socket_t client(context, zmq::socket_type::push);
  for (zmq::socket_t& server : servers) listen_at(server, "ipc://" + ::testing::TempDir() + "/*");
  const std::string endpoint = servers[1].get(zmq::sockopt::last_endpoint);
  EXPECT_NE(endpoint, servers[0].get(zmq::sockopt::last_endpoint));
  connect_to(client, endpoint);
  client.send(zmq::str_buffer("hello"), zmq::send_flags::none);
  zmq::message_t message;
  ASSERT_TRUE(servers[1].recv(message));
}

}  // namespace
}  // namespace modelet::comm
