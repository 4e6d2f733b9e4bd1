#include "node_agent/snapshots/holder_policy.h"

#include <span>

namespace modelet::agent {

namespace msg = comm::control;
using comm::Role;

void HolderPolicy::name(uint64_t pool, uint64_t run, const std::vector<msg::HolderT>& holders) {
  {
    const std::lock_guard lock(mutex_);
    held_.begin(pool, run);
    nodes_.clear();
  }
  admit(holders);
}

void HolderPolicy::admit(const std::vector<msg::HolderT>& holders) {
  const std::lock_guard lock(mutex_);
  for (const msg::HolderT& holder : holders)
    if (!holder.fetch_key.empty()) nodes_[holder.fetch_key] = holder.node;
}

comm::Identity HolderPolicy::find(const std::string& public_key) const {
  const std::lock_guard lock(mutex_);
  const auto found = nodes_.find(public_key);
  return found == nodes_.end() ? comm::Identity{Role::kNobody, {}}
                               : comm::Identity{Role::kAgent, found->second};
}

std::string HolderPolicy::why_not(const comm::Identity& sender, const msg::ToSchedulerMessage& message) {
  if (sender.role != Role::kAnybody && sender.role != Role::kAgent)
    return "the scheduler has not named this key as one of a node that works with this one";
  const auto* offer = std::get_if<msg::OfferT>(&message);
  if (offer == nullptr) return "";
  const auto manifest = comm::Manifest::parse(std::as_bytes(std::span(offer->manifest)));
  const std::lock_guard lock(mutex_);
  return held_.offer(offer->run, offer->step, manifest.id(), manifest.bytes(), sender.name);
}

std::map<comm::ContentId, std::string> HolderPolicy::held() const {
  const std::lock_guard lock(mutex_);
  return held_.nodes();
}

std::vector<comm::ContentId> HolderPolicy::forget_before(uint64_t run, uint64_t step) {
  const std::lock_guard lock(mutex_);
  return held_.forget_before(run, step);
}

}  // namespace modelet::agent
