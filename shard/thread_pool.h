// ThreadPool: the cores that one node may use. Everything parallel in a training step goes through it (a
// oneTBB arena), so that nothing else competes for the cores.
//
// Results never depend on the number of threads: callers give every index range its own output and reduce in
// index order. Use from one thread (the training thread); body functions run on the pool's threads.
#pragma once

#ifdef __SANITIZE_THREAD__
#include "shard/thread_pool_tsan.h"
#else

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace modelet::shard {

class ThreadPool {
 public:
  explicit ThreadPool(unsigned threads) : arena_(static_cast<int>(std::max(threads, 1u))) {}
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned threads() const { return static_cast<unsigned>(arena_.max_concurrency()); }

  // Calls body(begin, end) over [0, count) in pieces of exactly `piece` (the last may be shorter), and waits
  // for all. The pieces do not depend on the number of threads.
  template <class Body>
  void for_pieces(size_t count, size_t piece, const Body& body) {
    const size_t pieces = (count + piece - 1) / piece;
    const auto one = [&](size_t i) { body(i * piece, std::min(count, (i + 1) * piece)); };
    if (pieces <= 1 || threads() == 1) {
      for (size_t i = 0; i < pieces; ++i) one(i);
      return;
    }
    arena_.execute([&] { tbb::parallel_for(size_t{0}, pieces, one, tbb::simple_partitioner()); });
  }

  // Index of the calling thread within the pool, in [0, threads()): for scratch memory.
  size_t thread_index() const {
    const int index = tbb::this_task_arena::current_thread_index();
    return index == tbb::task_arena::not_initialized || threads() == 1 ? 0 : static_cast<size_t>(index);
  }

 private:
  friend class BackgroundTask;
  tbb::task_arena arena_;
};

// Work that goes on beside the steps, on the pool's threads; in a pool of one it is done in wait(). One task
// at a time. Used by the pool's owner thread. What the task touches must outlive it: the destructor waits.
class BackgroundTask {
 public:
  explicit BackgroundTask(ThreadPool& pool) : pool_(pool) {}
  ~BackgroundTask() noexcept { wait(); }
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  template <class Task>
  void run(Task&& task) {
    pool_.arena_.execute([&] { group_.run(std::forward<Task>(task)); });
  }
  void wait() {
    pool_.arena_.execute([&] { group_.wait(); });
  }

 private:
  ThreadPool& pool_;
  tbb::task_group group_;
};

}  // namespace modelet::shard

#endif
