#ifndef __SANITIZE_THREAD__  // thread_pool_tsan.cc

#include "base/parallel/thread_pool.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <utility>

namespace modelet {

struct ThreadPool::Arena {
  explicit Arena(unsigned threads) : tasks(static_cast<int>(threads)) {}
  tbb::task_arena tasks;
};

ThreadPool::ThreadPool(unsigned threads)
    : threads_(std::max(threads, 1u)), arena_(std::make_unique<Arena>(threads_)) {}
ThreadPool::~ThreadPool() = default;

void ThreadPool::run(size_t count, size_t piece, const std::function<void(size_t, size_t)>& body) {
  const size_t pieces = (count + piece - 1) / piece;
  const auto one = [&](size_t i) { body(i * piece, std::min(count, (i + 1) * piece)); };
  if (pieces <= 1 || threads_ == 1) {
    for (size_t i = 0; i < pieces; ++i) one(i);
    return;
  }
  arena_->tasks.execute([&] { tbb::parallel_for(size_t{0}, pieces, one, tbb::simple_partitioner()); });
}

size_t ThreadPool::thread_index() const {
  const int index = tbb::this_task_arena::current_thread_index();
  return index == tbb::task_arena::not_initialized || threads_ == 1 ? 0 : static_cast<size_t>(index);
}

struct BackgroundTask::Group {
  tbb::task_group tasks;
};

BackgroundTask::BackgroundTask(ThreadPool& pool) : pool_(pool), group_(std::make_unique<Group>()) {}
BackgroundTask::~BackgroundTask() noexcept { wait(); }

void BackgroundTask::run(std::function<void()> task) {
  pool_.arena_->tasks.execute([&] { group_->tasks.run(std::move(task)); });
}

void BackgroundTask::wait() {
  pool_.arena_->tasks.execute([&] { group_->tasks.wait(); });
}

}  // namespace modelet

#endif
