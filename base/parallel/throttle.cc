#include "base/parallel/throttle.h"

#include <algorithm>

namespace modelet {

void Throttle::allow(unsigned threads) {
  const std::lock_guard lock(mutex_);
  allowed_ = threads;
  publish();
}

void Throttle::hurry(bool hurried) {
  const std::lock_guard lock(mutex_);
  hurried_ = hurried;
  publish();
}

void Throttle::publish() {
  now_ = hurried_ ? std::max(1u, allowed_) : allowed_;
  now_.notify_all();
}

}  // namespace modelet
