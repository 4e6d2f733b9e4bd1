#include "node_agent/snapshots/kept_files.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "comm/content/snapshot.h"

namespace modelet::agent {

void HeldFiles::begin(uint64_t pool, uint64_t run) {
  if (pool != pool_ || run != run_) held_.clear();
  pool_ = pool;
  run_ = run;
}

std::string HeldFiles::offer(uint64_t run, uint64_t step, const comm::ContentId& content, uint64_t bytes,
                             const std::string& node) {
  if (run == 0 || run != run_)
    return fmt::format("this node works for run {}, and holds nothing of run {}", run_, run);
  if (const auto found = held_.find(content); found != held_.end()) {
    found->second.step = std::max(found->second.step, step);
    return "";
  }
  uint64_t all = bytes;
  for (const auto& [other, held] : held_) all += held.bytes;
  if (all > run_bytes_ || held_.size() >= comm::kMostSnapshotFiles)
    return fmt::format(
        "it would hold {} bytes in {} files for others, the most is {} in {} (--snapshot-mib of "
        "the agent)",
        all, held_.size() + 1, run_bytes_, comm::kMostSnapshotFiles);
  held_[content] = {step, bytes, node};
  return "";
}

std::vector<comm::ContentId> HeldFiles::forget_before(uint64_t run, uint64_t step) {
  std::vector<comm::ContentId> forgotten;
  if (run != run_) return forgotten;
  std::erase_if(held_, [&](const auto& entry) {
    if (entry.second.step >= step) return false;
    forgotten.push_back(entry.first);
    return true;
  });
  return forgotten;
}

std::map<comm::ContentId, std::string> HeldFiles::nodes() const {
  std::map<comm::ContentId, std::string> nodes;
  for (const auto& [content, held] : held_) nodes[content] = held.node;
  return nodes;
}

void Removals::leave_to_others(const std::set<comm::ContentId>& own,
                               const std::map<comm::ContentId, std::string>& held) {
  of_others_.insert(own.begin(), own.end());
  for (const auto& [file, node] : held) of_others_.insert(file);
}

// A file that another node sent may also belong to a snapshot of this node, and stays then.
void Removals::carry_out(const std::set<comm::ContentId>& own,
                         const std::map<comm::ContentId, std::string>& held,
                         const std::function<bool(const comm::ContentId& file)>& remove) {
  std::erase_if(forgotten_, [&](const comm::ContentId& file) {
    return own.contains(file) || held.contains(file) || of_others_.contains(file) || remove(file);
  });
}

}  // namespace modelet::agent
