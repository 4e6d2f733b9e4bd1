#include "scheduler/access/store_policy.h"

#include <algorithm>
#include <utility>

#include "scheduler/access/permission.h"

namespace modelet::scheduler {
namespace {

using comm::Role;

// The address that a message asks for; null if it asks for none.
const std::string* fetched_address(const comm::control::ToSchedulerMessage& message) {
  if (const auto* manifest = std::get_if<comm::control::FetchManifestT>(&message)) return &manifest->data;
  if (const auto* chunk = std::get_if<comm::control::FetchChunkT>(&message)) return &chunk->data;
  return nullptr;
}

}  // namespace

void StorePolicy::set_results(std::multimap<std::string, std::string> results) {
  const std::lock_guard lock(mutex_);
  results_ = std::move(results);
}

void StorePolicy::set_files_of_agents(std::multimap<std::string, std::string> files) {
  const std::lock_guard lock(mutex_);
  files_of_agents_ = std::move(files);
}

void StorePolicy::set_lags(bool lags) {
  const std::lock_guard lock(mutex_);
  lags_ = lags;
}

bool StorePolicy::is_early(const comm::Identity& sender,
                           const comm::control::ToSchedulerMessage& message) const {
  const std::string* address = fetched_address(message);
  if (address == nullptr) return false;
  const bool is_user = sender.role == Role::kUser || sender.role == Role::kAdmin;
  if (is_user && is_result_of(*address, sender)) return false;
  const std::lock_guard lock(mutex_);
  if (is_user) return lags_;
  if (sender.role != Role::kAgent) return false;
  const auto [first, last] = files_of_agents_.equal_range(*address);
  return std::none_of(first, last, [&](const auto& file) { return file.second == sender.name; });
}

std::string StorePolicy::why_not(const comm::Identity& sender,
                                 const comm::control::ToSchedulerMessage& message) const {
  const auto* offer = std::get_if<comm::control::OfferT>(&message);
  const bool of_snapshot = offer != nullptr && offer->run != 0;
  if (sender.role == Role::kAgent &&
      (of_snapshot || std::holds_alternative<comm::control::PutChunkT>(message)))
    return "";
  if (sender.role == Role::kUser || sender.role == Role::kAdmin) {
    const std::string* address = fetched_address(message);
    if (address != nullptr && is_result_of(*address, sender)) return "";
    if (of_snapshot) return "the key '" + sender.name + "' is a user's: only agents offer files of snapshots";
  }
  return sender.role == Role::kNobody ? unknown_text(sender) : scheduler::why_not(sender, message);
}

bool StorePolicy::is_result_of(const std::string& address, const comm::Identity& reader) const {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = results_.equal_range(address);
  return std::any_of(first, last, [&](const auto& result) { return may_lead(reader, result.second); });
}

}  // namespace modelet::scheduler
