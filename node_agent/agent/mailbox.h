// Mailbox: messages from the job's thread to the control thread, which alone uses the socket to the
// scheduler.
#pragma once

#include <deque>
#include <mutex>

#include "base/system/wake_event.h"
#include "comm/control/control.h"

namespace modelet::agent {

class Mailbox {
 public:
  void post(comm::control::ToSchedulerMessage message);  // any thread
  std::deque<comm::control::ToSchedulerMessage> take();  // all that were posted, in order
  void wake() { wake_.set(); }                           // async-signal-safe: makes fd() readable
  int fd() const { return wake_.fd(); }                  // readable when there is something to take

 private:
  std::mutex mutex_;
  std::deque<comm::control::ToSchedulerMessage> messages_;
  WakeEvent wake_;
};

}  // namespace modelet::agent
