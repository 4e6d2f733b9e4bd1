#include "node_agent/owner/owner_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "base/system/descriptor.h"
#include "tests/error_of.h"

namespace modelet::agent {
namespace {

using nlohmann::json;
using test::error_of;
using testing::HasSubstr;

namespace fs = std::filesystem;

class OwnerSocketTest : public testing::Test {
 protected:
  OwnerSocketTest() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  static json echo(const std::string& request) {
    if (request == "throw") throw std::runtime_error("cannot");
    return {{"heard", request}};
  }
  // What the socket answers to any bytes, which need not be a request.
  std::string answer_to(const std::string& bytes) const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path_.native().copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    std::string answer(1 << 12, '\0');
    const ssize_t size = ::recv(fd, answer.data(), answer.size(), 0);
    ::close(fd);
    return answer.substr(0, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  }

  const fs::path folder_ = "/tmp/modelet-owner-" + std::to_string(::getpid());
  const fs::path path_ = owner_socket_path(folder_, "a");
  ~OwnerSocketTest() override { fs::remove_all(folder_); }
};

TEST_F(OwnerSocketTest, AsksAndAnswers) {
  const OwnerSocket socket(path_, echo);
  EXPECT_EQ(ask_agent(path_, "pause 30"), (json{{"heard", "pause 30"}}));
  EXPECT_EQ(ask_agent(path_, ""), (json{{"heard", ""}}));
  EXPECT_THAT(error_of([&] { ask_agent(path_, "throw"); }), HasSubstr("the agent says: \"cannot\""));
  EXPECT_EQ(ask_agent(path_, "again"), (json{{"heard", "again"}}));
}

TEST_F(OwnerSocketTest, IsClosedToOthers) {
  const OwnerSocket socket(path_, echo);
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_TRUE(is_owner(1000, 1000));
  EXPECT_TRUE(is_owner(0, 1000));
  EXPECT_FALSE(is_owner(1001, 1000));
  EXPECT_FALSE(is_owner(1000, 0));
}

TEST_F(OwnerSocketTest, WhatIsNoRequestIsRefused) {
  const OwnerSocket socket(path_, echo);
  EXPECT_THAT(answer_to(std::string(1000, 'x')), HasSubstr("at most 256 bytes"));
  EXPECT_THAT(answer_to(std::string(1000, 'x') + '\n'), HasSubstr("at most 256 bytes"));
  EXPECT_THAT(answer_to("no end"), HasSubstr("no request"));  // after two seconds
  EXPECT_EQ(json::parse(answer_to("\xff\x01\n"))["heard"], "\xef\xbf\xbd\x01") << "an answer is UTF-8";
  EXPECT_EQ(ask_agent(path_, "again"), (json{{"heard", "again"}}));
}

TEST_F(OwnerSocketTest, OneAgentOfANameInAFolder) {
  {
    const OwnerSocket socket(path_, echo);
    EXPECT_THAT(error_of([&] { OwnerSocket second(path_, echo); }), HasSubstr("--name"));
    const OwnerSocket other(owner_socket_path(folder_, "b"), echo);
  }
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_THAT(error_of([&] { ask_agent(path_, "status"); }), HasSubstr("no agent listens here"));
}

TEST_F(OwnerSocketTest, WhatAKilledAgentLeftIsReplaced) {
  const int dead = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path_.native().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(dead, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(dead);
  ASSERT_TRUE(fs::exists(path_));
  const OwnerSocket socket(path_, echo);
  EXPECT_EQ(ask_agent(path_, "x"), (json{{"heard", "x"}}));
}

// Both an owner and another agent of this name learn that an agent is there, though it takes no request.
TEST_F(OwnerSocketTest, AnAgentThatDoesNotListenNowIsNotDead) {
  const Descriptor busy(::socket(AF_UNIX, SOCK_STREAM, 0)), waiting(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path_.native().copy(address.sun_path, sizeof address.sun_path - 1);
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  ASSERT_EQ(::bind(busy.get(), at, sizeof address), 0);
  ASSERT_EQ(::listen(busy.get(), 0), 0);
  ASSERT_EQ(::connect(waiting.get(), at, sizeof address), 0);  // takes the only place
  EXPECT_THAT(error_of([&] { ask_agent(path_, "status"); }), HasSubstr("try again"));
  EXPECT_THAT(error_of([&] { OwnerSocket second(path_, echo); }), HasSubstr("try again"));
  EXPECT_TRUE(fs::is_socket(path_));
}

TEST_F(OwnerSocketTest, AnotherUserIsToldWhoMayAsk) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can ask as another user";
  const OwnerSocket socket(path_, echo);
  fs::permissions(folder_, fs::perms::all);
  constexpr uid_t kNobody = 65534;
  const auto as = [](uid_t user) { ::syscall(SYS_setresuid, -1, user, -1); };  // of this thread alone
  as(kNobody);
  const std::string error = error_of([&] { ask_agent(path_, "status"); });
  as(0);
  EXPECT_THAT(error, HasSubstr("only that user and root may ask it"));
}

TEST_F(OwnerSocketTest, AFileInItsPlaceIsKept) {
  std::ofstream(path_) << "mine";
  EXPECT_THAT(error_of([&] { OwnerSocket socket(path_, echo); }), HasSubstr(path_.string()));
  EXPECT_TRUE(fs::is_regular_file(path_));
}

TEST_F(OwnerSocketTest, AnyNameInAnyFolder) {
  const fs::path deep = folder_ / std::string(100, 'd') / std::string(100, 'e');
  fs::create_directories(deep);
  const fs::path path = owner_socket_path(deep, "../x y/" + std::string(100, 'n'));
  EXPECT_EQ(path.parent_path(), deep);
  const OwnerSocket socket(path, echo);
  EXPECT_EQ(ask_agent(path, "x"), (json{{"heard", "x"}}));
}

TEST_F(OwnerSocketTest, WhatIsNoAgentIsNotBelieved) {
  const OwnerSocket socket(path_, [](const std::string&) { return json::array(); });
  EXPECT_THAT(error_of([&] { ask_agent(path_, "x"); }), HasSubstr("no agent"));
}

}  // namespace
}  // namespace modelet::agent
