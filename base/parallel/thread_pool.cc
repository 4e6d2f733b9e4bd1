#ifndef __SANITIZE_THREAD__  // thread_pool_tsan.cc

#include "base/parallel/thread_pool.h"

#include <pthread.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "base/parallel/idle_thread.h"
#include "base/parallel/throttle.h"

namespace modelet {

namespace {

// True in a forked child of a process that has worked with several threads. oneTBB's threads stay with the
// parent, and a child that uses oneTBB may wait for them for ever. So such a child does all work in the
// calling thread. A handler of pthread_atfork() can reach only globals.
std::atomic<bool> forked{false};

void watch_forks() {
  static const int watched = ::pthread_atfork(nullptr, nullptr, [] { forked = true; });
  static_cast<void>(watched);
}

}  // namespace

struct ThreadPool::Arena {
  explicit Arena(unsigned threads) {
    if (!forked) tasks.emplace(static_cast<int>(threads));
  }
  std::optional<tbb::task_arena> tasks;
};

ThreadPool::ThreadPool(unsigned threads, const Throttle* throttle)
    : threads_(std::max(threads, 1u)), throttle_(throttle), arena_(std::make_unique<Arena>(threads_)) {}

ThreadPool::~ThreadPool() {
  if (forked) static_cast<void>(arena_.release());
}

void ThreadPool::run(size_t count, size_t piece, const std::function<void(size_t, size_t)>& body) {
  const size_t pieces = (count + piece - 1) / piece;
  const unsigned threads = throttle_ == nullptr ? threads_ : std::min(threads_, throttle_->pass());
  const auto one = [&](size_t i) {
    if (throttle_ != nullptr) become_idle_thread();
    body(i * piece, std::min(count, (i + 1) * piece));
  };
  if (pieces <= 1 || threads == 1 || forked) {
    for (size_t i = 0; i < pieces; ++i) one(i);
    return;
  }
  watch_forks();
  std::atomic<size_t> next{0};
  const auto some = [&](size_t) {  // as many pieces as this thread gets done
    for (size_t i = next++; i < pieces; i = next++) one(i);
  };
  arena_->tasks->execute([&] {
    const tbb::simple_partitioner each_alone;
    if (threads == threads_)
      tbb::parallel_for(size_t{0}, pieces, one, each_alone);
    else
      tbb::parallel_for(size_t{0}, size_t{threads}, some, each_alone);
  });
}

size_t ThreadPool::thread_index() const {
  if (forked) return 0;
  const int index = tbb::this_task_arena::current_thread_index();
  return index == tbb::task_arena::not_initialized || threads_ == 1 ? 0 : static_cast<size_t>(index);
}

struct BackgroundTask::Running {
  Running() {
    if (!forked) tasks.emplace();
  }
  std::optional<tbb::task_group> tasks;
  std::function<void()> later;  // in a forked child
};

BackgroundTask::BackgroundTask(ThreadPool& pool) : pool_(pool), running_(std::make_unique<Running>()) {}
BackgroundTask::~BackgroundTask() noexcept { wait(); }

void BackgroundTask::run(std::function<void()> task) {
  if (forked) {
    running_->later = std::move(task);
    return;
  }
  if (pool_.threads_ > 1) watch_forks();
  const bool idle = pool_.throttle_ != nullptr;
  pool_.arena_->tasks->execute([&] {
    running_->tasks->run([idle, work = std::move(task)] {
      if (idle) become_idle_thread();
      work();
    });
  });
}

void BackgroundTask::wait() {
  if (const auto task = std::exchange(running_->later, nullptr)) task();
  if (!forked) pool_.arena_->tasks->execute([&] { running_->tasks->wait(); });
}

}  // namespace modelet

#endif
