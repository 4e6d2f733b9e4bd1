#include "scheduler/server/planner.h"

#include <string>
#include <utility>

namespace modelet::scheduler {

Planner::Planner(Work work, WakeEvent& wake)
    : work_(std::move(work)), wake_(wake), thread_([this] { run(); }) {}

Planner::~Planner() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Planner::ask(PlanRequest request) {
  const std::lock_guard lock(mutex_);
  std::string key = request.key;  // of the request that is moved
  requests_.add(std::move(key), std::move(request));
  changed_.notify_all();
}

void Planner::forget(uint64_t number) {
  const std::lock_guard lock(mutex_);
  requests_.erase_if([&](const PlanRequest& request) { return request.number == number; });
}

std::vector<Planned> Planner::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(planned_, {});
}

void Planner::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !requests_.empty(); });
    if (stop_) return;
    const PlanRequest request = *requests_.next();
    lock.unlock();
    Planned planned = work_(request);
    lock.lock();
    planned_.push_back(std::move(planned));
    wake_.set();
  }
}

}  // namespace modelet::scheduler
