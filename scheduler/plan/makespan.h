// Makespan: when the last of some tasks ends, if each node takes the next task as soon as it is free. Pure.
#pragma once

#include <algorithm>
#include <functional>
#include <queue>
#include <span>
#include <vector>

namespace modelet::scheduler {

// `busy`: [node] seconds until the node is free, of at least one node. `tasks`: their seconds, in the order in which
// they are taken.
inline double makespan(std::vector<double> busy, std::span<const double> tasks) {
  std::priority_queue free_at(std::greater<>(), std::move(busy));
  for (const double seconds : tasks) {
    const double end = free_at.top() + seconds;
    free_at.pop();
    free_at.push(end);
  }
  double last = 0;
  for (; !free_at.empty(); free_at.pop()) last = free_at.top();
  return last;
}

}  // namespace modelet::scheduler
