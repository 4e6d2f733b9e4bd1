// ThreadPool: the cores that one node may use. Everything parallel in a training step goes through it (a
// oneTBB arena), so that nothing else competes for the cores.
//
// Results never depend on the number of threads: callers give every index range its own output and reduce in
// index order. Use from one thread (the training thread); body functions run on the pool's threads.
//
// A forked child of a process that has worked with several threads does all work in the calling thread.
//
// Only thread_pool.cc includes oneTBB, whose headers take longer to compile than most files that use a pool.
// With the thread sanitizer the pool is thread_pool_tsan.cc.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace modelet {

class Throttle;

class ThreadPool {
 public:
  // `throttle`: says how many of the threads may work, and when; must outlive the pool. Null: all, always.
  explicit ThreadPool(unsigned threads, const Throttle* throttle = nullptr);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned threads() const { return threads_; }  // at most

  // Calls body(begin, end) over [0, count) in pieces of exactly `piece` (the last may be shorter), and waits
  // for all. The pieces do not depend on the number of threads. Allocates nothing for `body`.
  template <class Body>
  void for_pieces(size_t count, size_t piece, const Body& body) {
    run(count, piece, std::cref(body));
  }

  // Index of the calling thread within the pool, in [0, threads()): for scratch memory.
  size_t thread_index() const;

 private:
  friend class BackgroundTask;
  struct Arena;

  void run(size_t count, size_t piece, const std::function<void(size_t, size_t)>& body);

  const unsigned threads_;
  const Throttle* const throttle_;
  std::unique_ptr<Arena> arena_;
};

// Runs a task beside the steps, on the pool's threads. A pool of one thread runs it in wait(). One task at a
// time, and only the thread that uses the pool may call these functions. The destructor waits for the task,
// so whatever the task touches must outlive this object.
class BackgroundTask {
 public:
  explicit BackgroundTask(ThreadPool& pool);
  ~BackgroundTask() noexcept;
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  void run(std::function<void()> task);
  void wait();

 private:
  struct Running;

  ThreadPool& pool_;
  std::unique_ptr<Running> running_;
};

}  // namespace modelet
