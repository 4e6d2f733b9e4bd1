#include "base/parallel/short_slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace modelet {
namespace {

constexpr uint64_t kShort = 100'000;  // nanoseconds; the least that Linux takes

// As in linux/sched/types.h, which cannot be included beside sched.h.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;
};

// Sets the slice of the calling thread, which keeps its policy and nice value. 0: the system's default.
void set_slice(uint64_t nanoseconds) {
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0 ||
      (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH))
    return;
  attributes.runtime = nanoseconds;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

ShortSlice::ShortSlice() { set_slice(kShort); }
ShortSlice::~ShortSlice() { set_slice(0); }

}  // namespace modelet
