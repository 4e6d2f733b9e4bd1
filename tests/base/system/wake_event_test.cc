// WakeEvent: what a thread that waits for it sees while another thread sets it.
#include "base/system/wake_event.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

namespace modelet {
namespace {

bool is_readable(const WakeEvent& event) {
  pollfd item{.fd = event.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&item, 1, 0) == 1;
}

TEST(WakeEvent, IsSetUntilItIsCleared) {
  WakeEvent event;
  EXPECT_FALSE(event.is_set() || is_readable(event));
  event.set();
  event.set();
  EXPECT_TRUE(event.is_set() && is_readable(event));
  event.clear();
  EXPECT_FALSE(event.is_set() || is_readable(event));
}

// Whoever clears it only when is_set() would otherwise wake again and again.
TEST(WakeEvent, IsSetWheneverItsDescriptorIsReadable) {
  constexpr int kRounds = 10'000;
  WakeEvent event;
  std::atomic<int> started = 0, ended = 0;  // rounds; spinning makes the two calls overlap
  std::jthread other([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (started < round) std::this_thread::yield();
      event.set();
      ended = round;
    }
  });
  int broken = 0;
  for (int round = 1; round <= kRounds; ++round) {
    started = round;
    event.clear();
    while (ended < round) std::this_thread::yield();
    broken += is_readable(event) && !event.is_set();
  }
  EXPECT_EQ(broken, 0);
}

}  // namespace
}  // namespace modelet
