#include "base/parallel/throttle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/parallel/idle_thread.h"
#include "base/parallel/thread_pool.h"

namespace modelet {
namespace {

constexpr unsigned kThreads = 4;
constexpr size_t kCount = 1000, kPiece = 7;

// How often a loop has done each piece, and on how many threads at most at the same time.
struct Done {
  std::vector<int> times = std::vector<int>(kCount);
  unsigned most_at_once = 0;
};

Done loop(ThreadPool& pool) {
  Done done;
  std::mutex mutex;
  unsigned inside = 0;
  pool.for_pieces(kCount, kPiece, [&](size_t begin, size_t end) {
    {
      const std::lock_guard lock(mutex);
      done.most_at_once = std::max(done.most_at_once, ++inside);
    }
    std::this_thread::yield();
    for (size_t i = begin; i < end; ++i) ++done.times[i];
    const std::lock_guard lock(mutex);
    --inside;
  });
  return done;
}

// This must be the first test, because oneTBB lends a pool idle threads that another pool has used.
TEST(Throttle, OnlyThrottledThreadsAreIdle) {
  const auto policies = [](const Throttle* throttle) {
    std::mutex mutex;
    std::set<int> seen;
    std::thread([&] {
      ThreadPool pool(kThreads, throttle);
      pool.for_pieces(kCount, kPiece, [&](size_t, size_t) {
        const std::lock_guard lock(mutex);
        seen.insert(::sched_getscheduler(0));
      });
    }).join();
    return seen;
  };
  EXPECT_THAT(policies(nullptr), testing::ElementsAre(::sched_getscheduler(0)));
  const Throttle throttle;
  EXPECT_THAT(policies(&throttle), testing::ElementsAre(SCHED_IDLE));
}

TEST(Throttle, ThreadsInheritALowPriorityOfTheDisk) {
  constexpr int kOneThread = 1, kLowestBestEffort = 2 << 13 | 7;  // linux/ioprio.h
  long inherited = 0;
  std::thread([&] {
    lower_io_priority();
    std::thread([&] { inherited = ::syscall(SYS_ioprio_get, kOneThread, 0); }).join();
  }).join();
  EXPECT_EQ(inherited, kLowestBestEffort);
}

TEST(Throttle, FewerThreadsDoAllPieces) {
  Throttle throttle;
  ThreadPool pool(kThreads, &throttle);
  for (const unsigned threads : {1u, 2u, 3u, kThreads, 2 * kThreads}) {
    throttle.allow(threads);
    const Done done = loop(pool);
    EXPECT_THAT(done.times, testing::Each(1)) << threads;
    EXPECT_LE(done.most_at_once, std::min(threads, kThreads));
  }
}

TEST(Throttle, NoThreadWaitsUntilOneIsAllowed) {
  Throttle throttle;
  throttle.allow(0);
  std::atomic<bool> ended{false};
  std::thread worker([&] {
    ThreadPool pool(kThreads, &throttle);
    loop(pool);
    ended = true;
  });
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_FALSE(ended);
  throttle.allow(1);
  worker.join();
}

TEST(Throttle, WorkThatShallEndGoesOn) {
  Throttle throttle;
  throttle.allow(0);
  throttle.hurry(true);
  EXPECT_EQ(throttle.pass(), 1u);
  throttle.allow(3);
  EXPECT_EQ(throttle.pass(), 3u);
  throttle.allow(0);
  EXPECT_EQ(throttle.pass(), 1u);
  throttle.hurry(false);
  throttle.allow(2);
  EXPECT_EQ(throttle.pass(), 2u);
}

}  // namespace
}  // namespace modelet
