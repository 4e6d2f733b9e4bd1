#include "scheduler/core/values/misses.h"

#include <algorithm>

namespace modelet::scheduler {

void Misses::add(double now, const std::string& name, const std::string& by, uint64_t step, double flap) {
  passed(by, step);
  Miss& miss = misses_[name].try_emplace(by, Miss{.since = now, .step = step}).first->second;
  if (miss.over > 0 && now - miss.over >= flap) miss.since = now;
  miss.over = 0;
}

bool Misses::remove(double now, const std::string& name, const std::string& by) {
  const auto of_name = misses_.find(name);
  if (of_name == misses_.end()) return true;
  const auto miss = of_name->second.find(by);
  if (miss != of_name->second.end() && miss->second.over == 0) miss->second.over = now;
  return lasting(of_name->second) == 0;
}

void Misses::passed(const std::string& by, uint64_t step) {
  for (auto& [name, misses] : misses_)
    if (const auto miss = misses.find(by); miss != misses.end() && miss->second.step < step)
      misses.erase(miss);
}

double Misses::since() const {
  double earliest = 0;
  for (const auto& [name, misses] : misses_)
    for (const auto& [by, miss] : misses)
      if (miss.over == 0) earliest = earliest == 0 ? miss.since : std::min(earliest, miss.since);
  return earliest;
}

std::map<std::string, std::set<std::string>> Misses::apart() const {
  std::map<std::string, std::set<std::string>> apart;
  for (const auto& [name, misses] : misses_)
    for (const auto& [by, miss] : misses)
      if (miss.over == 0) {
        apart[name].insert(by);
        apart[by].insert(name);
      }
  return apart;
}

size_t Misses::lasting(const ByMember& misses) {
  return static_cast<size_t>(
      std::ranges::count_if(misses, [](const auto& entry) { return entry.second.over == 0; }));
}

}  // namespace modelet::scheduler
