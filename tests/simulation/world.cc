#include "tests/simulation/world.h"

#include <algorithm>

namespace modelet::simulation {

void World::after(double seconds, std::function<void()> what) {
  queue_.push_back({now_ + std::max(0.0, seconds), ++events_, std::move(what)});
  std::push_heap(queue_.begin(), queue_.end(), is_later);
}

bool World::advance() {
  if (queue_.empty()) return false;
  std::pop_heap(queue_.begin(), queue_.end(), is_later);
  const Event event = std::move(queue_.back());
  queue_.pop_back();
  now_ = event.time;
  digest_ = mix64(digest_ ^ std::bit_cast<uint64_t>(event.time) ^ event.number);
  event.what();
  return true;
}

void World::violated(std::string what) {
  note("VIOLATED: {}", what);
  if (violation_.empty()) violation_ = fmt::format("at {:.3f} s: {}", now_, what);
}

void Process::post(double seconds, std::function<void()> what) {
  world_.after(seconds, [this, life = life_, what = std::move(what)]() mutable {
    if (life != life_ || !alive_) return;
    if (!is_stalled() && waiting_.empty()) return what();
    waiting_.push_back(std::move(what));
  });
}

void Process::stall(double seconds) {
  if (!alive_) return;
  stalled_until_ = std::max(stalled_until_, world_.now() + seconds);
  world_.after(seconds, [this, life = life_] { drain(life); });
}

void Process::drain(uint64_t life) {
  while (life == life_ && !is_stalled() && !waiting_.empty()) {
    const auto what = std::move(waiting_.front());
    waiting_.pop_front();
    what();
  }
}

void Process::died() {
  alive_ = false;
  ++life_;
  stalled_until_ = 0;
  waiting_.clear();
}

}  // namespace modelet::simulation
