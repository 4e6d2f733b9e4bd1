#include "scheduler/dashboard/history.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace modelet::scheduler {

void History::add(double time, const std::vector<comm::control::NodeStatusT>& nodes) {
  const std::lock_guard lock(mutex_);
  if (intervals_.empty()) began_ = time;
  // The calendar may go back.
  const uint64_t newest = intervals_.empty() ? 0 : intervals_.back().number;
  const uint64_t number = std::max(newest, static_cast<uint64_t>(std::max(0.0, (time - began_) / kInterval)));
  if (intervals_.empty() || number > newest) intervals_.push_back({number, {}});
  while (intervals_.front().number + kIntervals <= number) intervals_.pop_front();
  for (const auto& node : nodes) {
    auto& interval = intervals_.back().nodes;
    if (interval.size() >= kMostNodes && !interval.contains(node.name)) continue;
    Sums& sums = interval[node.name];
    if (node.run == 0 || node.compute_seconds + node.codec_seconds + node.wait_seconds <= 0) continue;
    sums.compute += node.compute_seconds;
    sums.codec += node.codec_seconds;
    sums.wait += node.wait_seconds;
    ++sums.reports;
  }
}

NodeHistory History::get() const {
  const std::lock_guard lock(mutex_);
  NodeHistory history{.seconds = kInterval};
  if (intervals_.empty()) return history;
  history.first = intervals_.front().number;
  history.began = began_ + static_cast<double>(history.first) * kInterval;
  std::set<std::string> names;
  for (auto interval = intervals_.rbegin(); interval != intervals_.rend(); ++interval)
    for (const auto& [name, sums] : interval->nodes)
      if (names.size() < kMostNodes) names.insert(name);
  history.names.assign(names.begin(), names.end());
  const size_t length = intervals_.back().number - history.first + 1;
  for (const std::string& name : history.names) {
    auto& row = history.nodes.emplace_back(length);
    for (const Interval& interval : intervals_) {
      const auto found = interval.nodes.find(name);
      if (found == interval.nodes.end()) continue;
      const Sums& sums = found->second;
      const auto mean = [&](double sum) {
        return sums.reports == 0 ? 0.0f : static_cast<float>(sum / sums.reports);
      };
      row[interval.number - history.first] = {mean(sums.compute), mean(sums.codec), mean(sums.wait), true};
    }
  }
  return history;
}

}  // namespace modelet::scheduler
