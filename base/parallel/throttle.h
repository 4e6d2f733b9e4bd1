// Throttle: how many threads a ThreadPool may use at the moment, if somebody else has the first call on the
// machine. The pool asks before each loop, waits while none is allowed, and never changes what is computed.
// Threads that work for a throttled pool take only what nobody else wants (base/parallel/idle_thread.h).
//
// All functions may be called from any thread.
#pragma once

#include <atomic>
#include <limits>
#include <mutex>

namespace modelet {

class Throttle {
 public:
  // From the next loop on. 0: the pool's caller waits there.
  void allow(unsigned threads);
  // Somebody waits for the work to end: it goes on, on one thread at least, whatever is allowed.
  void hurry(bool hurried);

  // Of a pool: waits until a thread is allowed; how many are.
  unsigned pass() const {
    now_.wait(0);
    return now_.load();
  }

 private:
  void tell();

  std::mutex mutex_;
  unsigned allowed_ = std::numeric_limits<unsigned>::max();
  bool hurried_ = false;
  std::atomic<unsigned> now_{allowed_};
};

}  // namespace modelet
