#include "node_agent/agent/mailbox.h"

#include <utility>

namespace modelet::agent {

void Mailbox::post(comm::control::ToSchedulerMessage message) {
  const std::lock_guard lock(mutex_);
  messages_.push_back(std::move(message));
  wake_.set();
}

std::deque<comm::control::ToSchedulerMessage> Mailbox::take() {
  const std::lock_guard lock(mutex_);
  wake_.clear();
  return std::exchange(messages_, {});
}

}  // namespace modelet::agent
