// Signals that ask a program to stop, and memory that goes back to the machine.
#include "base/system/process.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"

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

void end_with(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(1);
  }
  std::_Exit(0);
}

void limit_descriptors(rlim_t soft, rlim_t hard) {
  const rlimit limit{soft, hard};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) std::_Exit(9);
}

TEST(Descriptors, TheLimitIsRaisedAsFarAsItCanBe) {
  const auto require = [](rlim_t hard) {
    limit_descriptors(32, hard);
    end_with([] { require_descriptors(200, "a pool"); });
  };
  EXPECT_EXIT(require(1000), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(require(200), testing::ExitedWithCode(1), "a pool needs 2.. open files.*may have 200.*ulimit");
}

TEST(StopSignals, NothingToSaveEndsTheProcessAtOnce) {
  const auto end = [] {
    const StopSignals handled([] { end_from_signal("nothing to save\n"); });
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(130), "nothing to save");
}

TEST(Room, IsLookedForBeforeTheWork) {
  const std::filesystem::path folder = testing::TempDir();
  require_room(folder / "not" / "yet", 1);
  EXPECT_FALSE(std::filesystem::exists(folder / "not"));
  EXPECT_THROW(require_room(folder, UINT64_MAX), Error);
  EXPECT_THROW(require_room("/proc/no/such", 0), Error) << "nobody may write there";
  EXPECT_THROW(require_room("/dev/null/run", 0), Error);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MODELET_OTHER_MALLOC  // the sanitizer's
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MODELET_OTHER_MALLOC
#endif
#if defined(__GLIBC__) && !defined(MODELET_OTHER_MALLOC)
size_t resident_bytes() {
  size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<size_t>(::getpagesize());
}

std::unique_ptr<char[]> piece(size_t bytes) {
  auto made = std::make_unique_for_overwrite<char[]>(bytes);
  std::memset(made.get(), 7, bytes);
  return made;
}

// Every hundredth piece stays, so what is freed lies between pieces that are in use.
TEST(FreedMemory, GoesBackToTheMachine) {
  constexpr size_t kPiece = 65536, kPieces = 1000, kKeepEvery = 100;
  std::vector<std::unique_ptr<char[]>> pieces(kPieces);
  for (auto& each : pieces) each = piece(kPiece);
  for (size_t i = 0; i < kPieces; ++i)
    if (i % kKeepEvery != kKeepEvery - 1) pieces[i].reset();
  const size_t before = resident_bytes();
  give_back_freed_memory();
  EXPECT_LT(resident_bytes() + kPieces * kPiece / 2, before);
  EXPECT_EQ(pieces[kKeepEvery - 1][kPiece - 1], 7);
}

// Each large piece is followed by a small one that stays. In a process of its own, because the choice is for good.
TEST(FreedMemory, LargePiecesGoBackAtOnce) {
  const auto freed_half = [] {
    give_back_large_pieces();
    constexpr size_t kPiece = size_t{1} << 20, kPieces = 64;
    std::vector<std::unique_ptr<char[]>> large, small;
    large.push_back(piece(24 * kPiece));
    large.clear();  // without the choice, smaller pieces would be kept from now on
    for (size_t i = 0; i < kPieces; ++i) {
      large.push_back(piece(kPiece));
      small.push_back(piece(70000));
    }
    const size_t before = resident_bytes();
    large.clear();
    std::_Exit(resident_bytes() + kPieces * kPiece / 2 < before ? 7 : 8);
  };
  EXPECT_EXIT(freed_half(), testing::ExitedWithCode(7), "");
}
#endif

}  // namespace
}  // namespace modelet
