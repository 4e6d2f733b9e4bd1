#include "scheduler/server/errands.h"

#include "base/error.h"

namespace modelet::scheduler {

void Errands::carry_out() {
  std::deque<std::function<void()>> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting = std::exchange(waiting_, {});
  }
  for (const auto& work : waiting) work();
}

void Errands::set_open(bool open) {
  std::deque<std::function<void()>> never;  // whoever waits for these gets a broken promise
  const std::lock_guard lock(mutex_);
  is_open_ = open;
  never = std::exchange(waiting_, {});
}

void Errands::add(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (!is_open_) refuse();
  waiting_.push_back(std::move(work));
  wake_.set();
}

void Errands::refuse() { throw Error("the scheduler is ending: ask again when it is back"); }

void Errands::give_up() { throw Error("the scheduler is busy: ask again later"); }

}  // namespace modelet::scheduler
