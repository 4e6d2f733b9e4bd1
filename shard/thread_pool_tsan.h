// The thread pool as the thread sanitizer needs it: plain std::thread. Debian's oneTBB is not built for the
// sanitizer, which would report every piece of work that TBB hands from one thread to another and so hide the
// real races in the pieces. Same interface and meaning as in thread_pool.h, which includes this in such
// builds only. Slow: starts threads in every call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

namespace modelet::shard {

class ThreadPool {
 public:
  explicit ThreadPool(unsigned threads) : threads_(std::max(threads, 1u)) {}
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned threads() const { return threads_; }

  template <class Body>
  void for_pieces(size_t count, size_t piece, const Body& body) {
    const size_t pieces = (count + piece - 1) / piece;
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i = next++; i < pieces; i = next++) body(i * piece, std::min(count, (i + 1) * piece));
    };
    std::vector<std::thread> helpers;
    const bool nested = index() != 0 || inside();
    for (size_t t = 1; !nested && t < std::min<size_t>(threads_, pieces); ++t)
      helpers.emplace_back([&work, t] {
        index() = t;
        work();
      });
    const bool outer = std::exchange(inside(), true);
    work();
    inside() = outer;
    for (std::thread& helper : helpers) helper.join();
  }

  size_t thread_index() const { return index(); }

 private:
  static size_t& index() {
    thread_local size_t value = 0;
    return value;
  }
  static bool& inside() {
    thread_local bool value = false;
    return value;
  }

  unsigned threads_;
};

class BackgroundTask {
 public:
  explicit BackgroundTask(ThreadPool&) {}
  ~BackgroundTask() { wait(); }
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  template <class Task>
  void run(Task&& task) {
    wait();
    thread_ = std::thread(std::forward<Task>(task));
  }
  void wait() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

}  // namespace modelet::shard
