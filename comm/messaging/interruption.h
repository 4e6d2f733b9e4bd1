// Interruption: says whether somebody wants a group to end. The groups of a grid share one, so they end
// together. Any thread may use it.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"

namespace modelet::comm {

class Interruption {
 public:
  // Only the first reason is kept.
  void set(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!reason_) reason_ = reason;
  }
  // Throws Interrupted with the reason, if there is one.
  void throw_if_set() {
    const std::lock_guard lock(mutex_);
    if (reason_) throw Interrupted(*reason_);
  }

 private:
  std::mutex mutex_;
  std::optional<std::string> reason_;
};

}  // namespace modelet::comm
