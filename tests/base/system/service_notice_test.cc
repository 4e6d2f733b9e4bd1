// What a service manager hears, at a real socket.
#include "base/system/service_notice.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/system/descriptor.h"

namespace modelet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Stands in for systemd. `address` is what $NOTIFY_SOCKET says.
class Manager {
 public:
  explicit Manager(std::string address) : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    ::setenv("NOTIFY_SOCKET", address.c_str(), 1);
    if (address.front() == '@') address.front() = '\0';
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    address.copy(at.sun_path, sizeof at.sun_path);
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&at), bytes), 0) << errno_text(address);
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;
  ~Manager() { ::unsetenv("NOTIFY_SOCKET"); }

  std::vector<std::string> heard() const {
    std::vector<std::string> all;
    std::array<char, 4096> text{};
    for (ssize_t size = 0; (size = ::recv(socket_.get(), text.data(), text.size(), MSG_DONTWAIT)) > 0;)
      all.emplace_back(text.data(), static_cast<size_t>(size));
    return all;
  }

 private:
  Descriptor socket_;
};

std::string socket_path() { return testing::TempDir() + "notify-" + std::to_string(::getpid()); }

TEST(ServiceNotice, TheManagerHearsEachStateOnce) {
  const std::string path = socket_path();
  const Manager manager(path);
  ServiceNotice notice;
  EXPECT_THAT(manager.heard(), IsEmpty());
  notice.status("looks for the scheduler");
  notice.ready();
  notice.status("free");
  notice.status("free");
  notice.ready();
  notice.stopping();
  notice.stopping();
  EXPECT_THAT(manager.heard(),
              ElementsAre("STATUS=looks for the scheduler", "READY=1", "STATUS=free", "STOPPING=1"));
  ::unlink(path.c_str());
}

TEST(ServiceNotice, ATextIsOneLine) {
  const Manager manager("@modelet-notify-" + std::to_string(::getpid()));  // an abstract name
  ServiceNotice notice;
  notice.status("free\nREADY=1");
  const std::vector<std::string> heard = manager.heard();
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard.front().find('\n'), std::string::npos) << heard.front();
}

TEST(ServiceNotice, WithoutAManagerNothingHappens) {
  ::unsetenv("NOTIFY_SOCKET");
  ServiceNotice notice;
  notice.ready();
  notice.status("free");
}

TEST(ServiceNotice, AManagerThatIsGoneEndsNothing) {
  const std::string path = socket_path();
  { const Manager manager(path); }
  ::unlink(path.c_str());
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  ServiceNotice notice;
  notice.ready();
  notice.stopping();
  ::unsetenv("NOTIFY_SOCKET");
}

TEST(ServiceNotice, AnAddressThatIsNoneIsRefused) {
  for (const std::string& wrong : {std::string("notify"), std::string("/"), "/" + std::string(200, 'x')}) {
    ::setenv("NOTIFY_SOCKET", wrong.c_str(), 1);
    EXPECT_THROW(ServiceNotice(), UsageError) << wrong;
  }
  ::unsetenv("NOTIFY_SOCKET");
}

}  // namespace
}  // namespace modelet
