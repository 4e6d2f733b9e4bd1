#ifndef __SANITIZE_THREAD__  // thread_pool_tsan.cc

#include "base/parallel/thread_pool.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/parallel/idle_thread.h"
#include "base/parallel/throttle.h"

namespace modelet {

struct ThreadPool::Arena {
  explicit Arena(unsigned threads) : tasks(static_cast<int>(threads)) {}
  tbb::task_arena tasks;
};

ThreadPool::ThreadPool(unsigned threads, const Throttle* throttle)
    : threads_(std::max(threads, 1u)), throttle_(throttle), arena_(std::make_unique<Arena>(threads_)) {}
ThreadPool::~ThreadPool() = default;

void ThreadPool::run(size_t count, size_t piece, const std::function<void(size_t, size_t)>& body) {
  const size_t pieces = (count + piece - 1) / piece;
  const unsigned threads = throttle_ == nullptr ? threads_ : std::min(threads_, throttle_->pass());
  const auto one = [&](size_t i) {
    if (throttle_ != nullptr) become_idle_thread();
    body(i * piece, std::min(count, (i + 1) * piece));
  };
  if (pieces <= 1 || threads == 1) {
    for (size_t i = 0; i < pieces; ++i) one(i);
    return;
  }
  std::atomic<size_t> next{0};
  const auto some = [&](size_t) {  // as many pieces as this thread gets done
    for (size_t i = next++; i < pieces; i = next++) one(i);
  };
  arena_->tasks.execute([&] {
    const tbb::simple_partitioner each_alone;
    if (threads == threads_)
      tbb::parallel_for(size_t{0}, pieces, one, each_alone);
    else
      tbb::parallel_for(size_t{0}, size_t{threads}, some, each_alone);
  });
}

size_t ThreadPool::thread_index() const {
  const int index = tbb::this_task_arena::current_thread_index();
  return index == tbb::task_arena::not_initialized || threads_ == 1 ? 0 : static_cast<size_t>(index);
}

struct BackgroundTask::Running {
  tbb::task_group tasks;
};

BackgroundTask::BackgroundTask(ThreadPool& pool) : pool_(pool), running_(std::make_unique<Running>()) {}
BackgroundTask::~BackgroundTask() noexcept { wait(); }

void BackgroundTask::run(std::function<void()> task) {
  const bool idle = pool_.throttle_ != nullptr;
  pool_.arena_->tasks.execute([&] {
    running_->tasks.run([idle, work = std::move(task)] {
      if (idle) become_idle_thread();
      work();
    });
  });
}

void BackgroundTask::wait() {
  pool_.arena_->tasks.execute([&] { running_->tasks.wait(); });
}

}  // namespace modelet

#endif
