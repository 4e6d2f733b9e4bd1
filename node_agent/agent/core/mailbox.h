// Mailbox: passes events from the threads of jobs and snapshots to the control thread, which alone has the
// AgentCore and the socket to the scheduler.
#pragma once

#include <deque>
#include <mutex>

#include "base/system/wake_event.h"
#include "node_agent/agent/core/agent_core.h"

namespace modelet::agent {

class Mailbox {
 public:
  void post(AgentEvent event);           // any thread
  std::deque<AgentEvent> take();         // everything posted so far, in order
  void wake() { wake_.set(); }           // async-signal-safe: makes fd() readable
  int fd() const { return wake_.fd(); }  // readable when there is something to take

 private:
  std::mutex mutex_;
  std::deque<AgentEvent> events_;
  WakeEvent wake_;
};

}  // namespace modelet::agent
