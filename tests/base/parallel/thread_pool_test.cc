// A pool in forked children. oneTBB itself makes some of them wait for ever.
#include "base/parallel/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace modelet {
namespace {

constexpr size_t kItems = 100;

size_t items_done(ThreadPool& pool) {
  std::atomic<size_t> done{0};
  pool.for_pieces(kItems, 1, [&](size_t, size_t) {
    std::atomic<int> work{0};
    while (work.fetch_add(1, std::memory_order_relaxed) < 100) continue;
    ++done;
  });
  return done;
}

bool background_works(ThreadPool& pool) {
  std::atomic<bool> done{false};
  BackgroundTask task(pool);
  task.run([&] { done = true; });
  task.wait();
  return done;
}

bool works(ThreadPool& pool) {
  for (int time = 0; time < 10; ++time)
    if (items_done(pool) != kItems || pool.thread_index() >= pool.threads()) return false;
  return background_works(pool);
}

TEST(ThreadPool, WorksInForkedChildren) {
  constexpr int kChildren = 100;
  constexpr unsigned kSeconds = 20;  // after which a child counts as hanging
  ThreadPool pool(2);
  for (int child = 0; child < kChildren; ++child) {
    ASSERT_TRUE(works(pool));
    const pid_t process = ::fork();
    if (process == 0) {
      ::alarm(kSeconds);
      bool good = works(pool);
      {
        ThreadPool another(2);
        good = works(another) && good;
      }
      ::_exit(good ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(process, &status, 0), process);
    ASSERT_EQ(status, 0) << "child " << child;
  }
}

}  // namespace
}  // namespace modelet
