// Monotonic time. Code that waits or measures takes a Clock, so that a test can drive time by hand.
#pragma once

#include <chrono>

namespace modelet {

using Seconds = std::chrono::duration<double>;

class Clock {
 public:
  virtual ~Clock() = default;
  // Seconds since an arbitrary fixed point; never goes backwards. Thread-safe.
  virtual double now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  double now() const override { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }
};

class Stopwatch {
 public:
  double seconds() const { return clock_.now() - start_; }
  // Seconds since construction or the last lap.
  double lap() {
    const double now = clock_.now(), elapsed = now - start_;
    start_ = now;
    return elapsed;
  }

 private:
  SteadyClock clock_;
  double start_ = clock_.now();
};

}  // namespace modelet
