#include "node_agent/agent/core/mailbox.h"

#include <utility>

namespace modelet::agent {

void Mailbox::post(AgentEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  wake_.set();
}

std::deque<AgentEvent> Mailbox::take() {
  const std::lock_guard lock(mutex_);
  wake_.clear();
  return std::exchange(events_, {});
}

}  // namespace modelet::agent
