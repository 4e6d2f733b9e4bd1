#include "node_agent/snapshots/holder_policy.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <span>

#include "comm/content/snapshot.h"

namespace modelet::agent {

namespace msg = comm::control;
using comm::Role;

void HolderPolicy::name(uint64_t pool, uint64_t run, const std::vector<msg::HolderT>& holders) {
  {
    const std::lock_guard lock(mutex_);
    if (pool != pool_ || run != run_) held_.clear();
    pool_ = pool;
    run_ = run;
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
  return offer == nullptr ? "" : note(sender, *offer);
}

std::string HolderPolicy::note(const comm::Identity& sender, const msg::OfferT& offer) {
  const auto manifest = comm::Manifest::parse(std::as_bytes(std::span(offer.manifest)));
  const std::lock_guard lock(mutex_);
  if (offer.run == 0 || offer.run != run_)
    return fmt::format("this node works for run {}, and holds nothing of run {}", run_, offer.run);
  const std::string address = to_text(manifest.id());
  if (const auto found = held_.find(address); found != held_.end()) {
    found->second.step = std::max(found->second.step, offer.step);
    return "";
  }
  uint64_t bytes = manifest.bytes();
  for (const auto& [other, held] : held_) bytes += held.bytes;
  if (bytes > run_bytes_ || held_.size() >= comm::kMostSnapshotFiles)
    return fmt::format(
        "it would hold {} bytes in {} files for others, the most is {} in {} (--snapshot-mib of "
        "the agent)",
        bytes, held_.size() + 1, run_bytes_, comm::kMostSnapshotFiles);
  held_[address] = {offer.step, manifest.bytes(), sender.name};
  return "";
}

std::map<std::string, std::string> HolderPolicy::held() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> addresses;
  for (const auto& [address, held] : held_) addresses[address] = held.node;
  return addresses;
}

std::vector<std::string> HolderPolicy::forget_before(uint64_t run, uint64_t step) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> forgotten;
  if (run != run_) return forgotten;
  std::erase_if(held_, [&](const auto& entry) {
    if (entry.second.step >= step) return false;
    forgotten.push_back(entry.first);
    return true;
  });
  return forgotten;
}

}  // namespace modelet::agent
