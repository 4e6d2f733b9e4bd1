#include "node_agent/agent/core/outbox.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace modelet::agent {

void Outbox::add(comm::control::ToSchedulerMessage message, uint64_t heartbeat) {
  entries_.push_back({std::move(message), heartbeat});
  if (entries_.size() <= most_) return;
  const auto event = std::ranges::find_if(entries_, [](const Entry& entry) {
    return std::holds_alternative<comm::control::RunEventT>(entry.message);
  });
  entries_.erase(event != entries_.end() ? event : entries_.begin());
  ++left_out_;
}

void Outbox::sent_again(uint64_t heartbeat) {
  for (Entry& entry : entries_) entry.after = heartbeat;
}

void Outbox::confirm(uint64_t heartbeat) {
  while (!entries_.empty() && entries_.front().after < heartbeat) entries_.pop_front();
}

}  // namespace modelet::agent
