#include "scheduler/server/planner.h"

#include <gmock/gmock.h>
#include <poll.h>

#include <cstdint>
#include <future>
#include <vector>

#include "base/system/wake_event.h"

namespace modelet::scheduler {
namespace {

// Whoever asks for many plans does not keep others waiting for all of them.
TEST(Planner, KeysTakeTurns) {
  std::promise<void> begun, all_asked;
  WakeEvent wake;
  Planner planner(
      [&](const PlanRequest& request) {
        if (request.number == 1) {
          begun.set_value();
          all_asked.get_future().wait();
        }
        return Planned{.number = request.number};
      },
      wake);
  const auto ask = [&](const char* key, uint64_t number) {
    PlanRequest request;
    request.number = number;
    request.key = key;
    planner.ask(std::move(request));
  };
  ask("first", 1);
  begun.get_future().wait();
  for (const uint64_t number : {2, 3, 4}) ask("alice", number);
  ask("bob", 5);
  all_asked.set_value();
  std::vector<uint64_t> order;
  while (order.size() < 5) {
    constexpr int kLongest = 60000;  // ms
    pollfd waits{.fd = wake.fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&waits, 1, kLongest), 1);
    wake.clear();
    for (const Planned& answer : planner.take()) order.push_back(answer.number);
  }
  EXPECT_THAT(order, testing::ElementsAre(1, 2, 5, 3, 4));
}

}  // namespace
}  // namespace modelet::scheduler
