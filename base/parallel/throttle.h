// Throttle: limits how many threads a ThreadPool may use at the moment, on a machine where somebody else
// comes first. The pool asks before each loop, and waits while no thread is allowed. A throttle never changes
// what is computed. The threads of a throttled pool are idle threads (base/parallel/idle_thread.h).
//
// All functions may be called from any thread.
#pragma once

#include <atomic>
#include <limits>
#include <mutex>

namespace modelet {

class Throttle {
 public:
  // Sets the limit from the next loop on. 0: the pool's caller waits before that loop.
  void allow(unsigned threads);
  // While `hurried`, at least one thread may work, whatever is allowed: somebody waits for the work to end.
  void hurry(bool hurried);

  // For the pool: waits until a thread is allowed, and returns how many are.
  unsigned pass() const {
    now_.wait(0);
    return now_.load();
  }

 private:
  void publish();

  std::mutex mutex_;
  unsigned allowed_ = std::numeric_limits<unsigned>::max();
  bool hurried_ = false;
  std::atomic<unsigned> now_{allowed_};
};

}  // namespace modelet
