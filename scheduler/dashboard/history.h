// History: where the time of steps went on each node of a pool, in intervals of the same length: the last hour. It keeps
// a bounded number of nodes, the newest ones. One thread writes, any thread reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "comm/control/control.h"
#include "scheduler/dashboard/pool_view.h"

namespace modelet::scheduler {

class History {
 public:
  static constexpr double kInterval = 10;     // seconds
  static constexpr size_t kIntervals = 360;   // that are kept
  static constexpr size_t kMostNodes = 2048;  // that were seen in these

  // What the nodes report now, at `time` seconds since 1970. What is added in one interval is averaged.
  void add(double time, const std::vector<comm::control::NodeStatusT>& nodes);
  NodeHistory get() const;

 private:
  struct Sums {
    double compute = 0, codec = 0, wait = 0;
    uint32_t reports = 0;  // 0: it was there, but reported no step
  };
  struct Interval {
    uint64_t number = 0;
    std::map<std::string, Sums> nodes;
  };

  mutable std::mutex mutex_;
  double began_ = 0;  // of interval 0
  std::deque<Interval> intervals_;
};

}  // namespace modelet::scheduler
