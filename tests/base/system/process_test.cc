// Signals that ask a program to stop.
#include "base/system/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace modelet {
namespace {

volatile std::sig_atomic_t stops = 0;

void raise_all(std::initializer_list<int> signals, StopSignals::Again again) {
  stops = 0;
  {
    const StopSignals handled([] { stops = stops + 1; }, again);
    for (const int signal : signals) std::raise(signal);
  }
  std::_Exit(stops);  // in a process of its own
}

using Again = StopSignals::Again;

TEST(StopSignals, TheFirstOfAKindIsHeardAndTheSecondEndsTheProcess) {
  EXPECT_EXIT(raise_all({SIGINT}, Again::kEndsProcess), testing::ExitedWithCode(1), "");
  EXPECT_EXIT(raise_all({SIGINT, SIGTERM}, Again::kEndsProcess), testing::ExitedWithCode(2), "");
  EXPECT_EXIT(raise_all({SIGINT, SIGINT}, Again::kEndsProcess), testing::KilledBySignal(SIGINT), "");
  EXPECT_EXIT(raise_all({SIGTERM, SIGTERM}, Again::kEndsProcess), testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(raise_all({SIGHUP, SIGTERM}, Again::kEndsProcess), testing::ExitedWithCode(2), "");
  EXPECT_EXIT(raise_all({SIGHUP, SIGHUP}, Again::kEndsProcess), testing::KilledBySignal(SIGHUP), "");
}

TEST(StopSignals, AHangUpThatTheProcessWasToIgnoreStaysIgnored) {
  const auto ignored = [] {
    std::signal(SIGHUP, SIG_IGN);
    raise_all({SIGHUP, SIGHUP, SIGINT}, Again::kEndsProcess);
  };
  EXPECT_EXIT(ignored(), testing::ExitedWithCode(1), "");
}

TEST(StopSignals, APipeThatNobodyReadsFailsOnlyTheWriting) {
  const auto write_to_nobody = [] {
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) std::_Exit(3);
    ::close(pipe[0]);
    const StopSignals handled([] {});
    std::_Exit(::write(pipe[1], "x", 1) == -1 && errno == EPIPE ? 7 : 8);
  };
  EXPECT_EXIT(write_to_nobody(), testing::ExitedWithCode(7), "");
}

TEST(StopSignals, AllAreHeardByWhoWantsThat) {
  EXPECT_EXIT(raise_all({SIGTERM, SIGTERM, SIGINT, SIGINT}, Again::kCallsStop), testing::ExitedWithCode(4),
              "");
}

TEST(StopSignals, FormerHandlersComeBack) {
  std::signal(SIGINT, [](int) { std::_Exit(7); });
  {
    const StopSignals handled([] {});
  }
  EXPECT_EXIT(std::raise(SIGINT), testing::ExitedWithCode(7), "");
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace
}  // namespace modelet
