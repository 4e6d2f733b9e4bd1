// Monotonic time. Code that waits or measures takes a Clock, so that a test can control time.
#pragma once

#include <chrono>
#include <string>

namespace modelet {

using Seconds = std::chrono::duration<double>;

class Clock {
 public:
  virtual ~Clock() = default;
  // Seconds since an arbitrary fixed point; never goes backwards. Thread-safe.
  virtual double now() const = 0;
  // Lets the calling thread wait.
  virtual void sleep(double seconds) const;
};

class SteadyClock final : public Clock {
 public:
  double now() const override { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }
};

// Calendar time, for logs: "2026-11-22T23:46:44.123Z" (ISO 8601, UTC).
std::string utc_text(std::chrono::system_clock::time_point time);

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
