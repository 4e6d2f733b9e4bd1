#include "scheduler/server/errands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tests/error_of.h"

namespace modelet::scheduler {
namespace {

using test::error_of;
using testing::HasSubstr;

// Does errands until it is told to stop, as a server does.
class Doer {
 public:
  explicit Doer(Errands& errands, WakeEvent& wake)
      : thread_([this, &errands, &wake] {
          const Errands::Open open(errands);
          is_open_ = true;
          while (!stop_)
            if (wake.is_set()) {
              wake.clear();
              errands.carry_out();
            }
        }) {
    while (!is_open_) continue;
  }
  ~Doer() {
    stop_ = true;
    thread_.join();
  }
  std::thread::id id() const { return thread_.get_id(); }

 private:
  std::atomic<bool> stop_{false}, is_open_{false};
  std::thread thread_;
};

TEST(ErrandsTest, OneThreadDoesTheWorkOfOthers) {
  WakeEvent wake;
  Errands errands(wake);
  constexpr int kThreads = 4, kEach = 100;
  int sum = 0;  // without a lock: one thread alone changes it
  {
    const Doer doer(errands, wake);
    std::vector<std::thread> askers;
    for (int i = 0; i < kThreads; ++i)
      askers.emplace_back([&] {
        for (int k = 0; k < kEach; ++k)
          EXPECT_EQ(errands.run<std::thread::id>([&] {
            ++sum;
            return std::this_thread::get_id();
          }),
                    doer.id());
      });
    for (std::thread& asker : askers) asker.join();
  }
  EXPECT_EQ(sum, kThreads * kEach);
}

TEST(ErrandsTest, WhatTheWorkThrowsReachesWhoeverAsked) {
  WakeEvent wake;
  Errands errands(wake);
  const Doer doer(errands, wake);
  EXPECT_EQ(error_of([&] { errands.run<int>([]() -> int { throw UsageError("give less"); }); }), "give less");
  EXPECT_EQ(errands.run<int>([] { return 7; }), 7) << "the thread goes on";
}

TEST(ErrandsTest, NobodyWaitsForAThreadThatHasEnded) {
  WakeEvent wake;
  Errands errands(wake);
  const auto ask = [&] { errands.run<int>([] { return 1; }); };
  EXPECT_THAT(error_of(ask), HasSubstr("is ending")) << "it has not begun";
  std::thread asker;
  std::string answer;
  {
    const Errands::Open open(errands);
    asker = std::thread([&] { answer = error_of(ask); });
    while (!wake.is_set()) continue;  // the errand has arrived, and nobody does it
  }
  asker.join();
  EXPECT_THAT(answer, HasSubstr("is ending"));
}

}  // namespace
}  // namespace modelet::scheduler
