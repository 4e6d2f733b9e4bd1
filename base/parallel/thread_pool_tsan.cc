// The thread pool for the thread sanitizer, with plain std::thread. Debian's oneTBB is not built for the
// sanitizer, which would report every piece of work that TBB hands from one thread to another and so hide
// real races. Slow: starts threads in every call.
#ifdef __SANITIZE_THREAD__

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "base/parallel/idle_thread.h"
#include "base/parallel/thread_pool.h"
#include "base/parallel/throttle.h"

namespace modelet {
namespace {

thread_local size_t index_in_pool = 0;
thread_local bool inside = false;  // in the body of a loop: a nested loop runs on this thread only

}  // namespace

struct ThreadPool::Arena {};

ThreadPool::ThreadPool(unsigned threads, const Throttle* throttle)
    : threads_(std::max(threads, 1u)), throttle_(throttle) {}
ThreadPool::~ThreadPool() = default;

void ThreadPool::run(size_t count, size_t piece, const std::function<void(size_t, size_t)>& body) {
  const size_t pieces = (count + piece - 1) / piece;
  const unsigned threads = throttle_ == nullptr ? threads_ : std::min(threads_, throttle_->pass());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    if (throttle_ != nullptr) become_idle_thread();
    for (size_t i = next++; i < pieces; i = next++) body(i * piece, std::min(count, (i + 1) * piece));
  };
  std::vector<std::thread> helpers;
  const bool nested = index_in_pool != 0 || inside;
  for (size_t t = 1; !nested && t < std::min<size_t>(threads, pieces); ++t)
    helpers.emplace_back([&work, t] {
      index_in_pool = t;
      work();
    });
  const bool outer = std::exchange(inside, true);
  work();
  inside = outer;
  for (std::thread& helper : helpers) helper.join();
}

size_t ThreadPool::thread_index() const { return index_in_pool; }

struct BackgroundTask::Running {
  std::thread thread;
};

BackgroundTask::BackgroundTask(ThreadPool& pool) : pool_(pool), running_(std::make_unique<Running>()) {}
BackgroundTask::~BackgroundTask() noexcept { wait(); }

void BackgroundTask::run(std::function<void()> task) {
  wait();
  running_->thread = std::thread([idle = pool_.throttle_ != nullptr, work = std::move(task)] {
    if (idle) become_idle_thread();
    work();
  });
}

void BackgroundTask::wait() {
  if (running_->thread.joinable()) running_->thread.join();
}

}  // namespace modelet

#endif
