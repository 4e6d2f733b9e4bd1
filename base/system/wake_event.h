// WakeEvent: wakes a thread that waits in poll(). set() may be called from any thread and from a signal
// handler.
#pragma once

#include <atomic>

namespace modelet {

class WakeEvent {
 public:
  WakeEvent();
  WakeEvent(const WakeEvent&) = delete;
  WakeEvent& operator=(const WakeEvent&) = delete;
  ~WakeEvent();

  void set();
  // is_set() is false again, fd() no longer readable. If another thread calls set() meanwhile, is_set() may be
  // true without a readable fd(), but never the reverse.
  void clear();
  bool is_set() const { return is_set_; }
  int fd() const { return fd_; }  // readable after set()

 private:
  int fd_;
  std::atomic<bool> is_set_{false};
};

}  // namespace modelet
