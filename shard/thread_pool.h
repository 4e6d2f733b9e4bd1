// ThreadPool: the cores that one node may use. Everything parallel in a training step goes through it (a oneTBB arena), so that
// nothing else competes for the cores.
//
// Results never depend on the number of threads: callers give every index range its own output and reduce in index order.
// Use from one thread (the training thread); body functions run on the pool's threads.
#pragma once

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <cstddef>

namespace modelet::shard {

class ThreadPool {
 public:
  explicit ThreadPool(unsigned threads) : arena_(static_cast<int>(std::max(threads, 1u))) {}
  ~ThreadPool() noexcept { wait_background(); }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned threads() const { return static_cast<unsigned>(arena_.max_concurrency()); }

  // Calls body(begin, end) over [0, count) in pieces of exactly `piece` (the last may be shorter), and waits for all.
  // The pieces do not depend on the number of threads.
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

  // Starts a task that runs beside the steps; with one thread it runs in wait_background(). One at a time.
  template <class Task>
  void run_background(Task&& task) {
    arena_.execute([&] { background_.run(std::forward<Task>(task)); });
  }
  void wait_background() {
    arena_.execute([&] { background_.wait(); });
  }

 private:
  tbb::task_arena arena_;
  tbb::task_group background_;
};

}  // namespace modelet::shard
