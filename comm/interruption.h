// Interruption: whether somebody wants a group, and those of its grid, to end. Any thread.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"

namespace modelet::comm {

class Interruption {
 public:
  // The first reason stays.
  void set(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!reason_) reason_ = reason;
  }
  // Interrupted, with the reason.
  void throw_if_set() {
    const std::lock_guard lock(mutex_);
    if (reason_) throw Interrupted(*reason_);
  }

 private:
  std::mutex mutex_;
  std::optional<std::string> reason_;
};

}  // namespace modelet::comm
