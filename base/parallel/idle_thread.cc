#include "base/parallel/idle_thread.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace modelet {
namespace {

// As in linux/ioprio.h, which older systems lack.
constexpr int kOneThread = 1, kBestEffortClass = 2, kIdleClass = 3, kClassShift = 13, kLowestLevel = 7;

thread_local bool is_idle_thread = false;

}  // namespace

void become_idle_thread() {
  if (is_idle_thread) return;
  is_idle_thread = true;
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);
  ::syscall(SYS_ioprio_set, kOneThread, 0, kIdleClass << kClassShift);
}

void lower_io_priority() {
  ::syscall(SYS_ioprio_set, kOneThread, 0, kBestEffortClass << kClassShift | kLowestLevel);
}

}  // namespace modelet
