#include "base/system/wake_event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "base/error.h"

namespace modelet {

WakeEvent::WakeEvent() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) throw Error(errno_text("eventfd"));
}

WakeEvent::~WakeEvent() { ::close(fd_); }

void WakeEvent::set() {
  is_set_ = true;
  const uint64_t one = 1;
  // Fails only if the counter is full, and then the descriptor is readable anyway.
  [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
  is_set_ = true;  // clear() may have reset it before the descriptor became readable
}

// A descriptor that stays readable while is_set() is false would wake its thread again and again. So the
// value is reset first: what comes in between sets it again.
void WakeEvent::clear() {
  is_set_ = false;
  uint64_t count = 0;
  [[maybe_unused]] const auto read = ::read(fd_, &count, sizeof count);
}

}  // namespace modelet
