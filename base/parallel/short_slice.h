// ShortSlice: gives the calling thread, and the threads that it starts while the object lives, time slices of
// a tenth of a millisecond. Since Linux 6.12 a thread that wakes up with a shorter slice than the running one
// takes the core at once (EEVDF, "preempt short"; sched_setattr(2), sched_runtime). A thread that moves
// messages therefore needs no core of its own beside those that compute. It gets no larger share of the
// machine and needs no privilege. On older kernels it has no effect.
#pragma once

#include <cstdint>

namespace modelet {

class ShortSlice {
 public:
  ShortSlice();
  ShortSlice(const ShortSlice&) = delete;
  ShortSlice& operator=(const ShortSlice&) = delete;
  ~ShortSlice();  // gives the calling thread the default slice again; threads that it started keep theirs
};

}  // namespace modelet
