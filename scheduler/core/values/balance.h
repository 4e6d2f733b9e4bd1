// Balance: how long each node of a group takes to compute a step. The node of rank 0 reports the times of all
// nodes with its progress. The scheduler shows which node is slow, and places
// the modelets anew if that lasts. A node is slow if it computes longer than the others do; a single node is
// compared with its plan. Pure. The reports come from a peer and may contain anything.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "comm/control/control_generated.h"

namespace modelet::scheduler {

using comm::control::StepSeconds;

bool is_plausible(const StepSeconds& times);

struct Straggler {
  size_t node = 0;    // that computes longest
  double excess = 0;  // by which share it computes longer than the mean of the others
};
// Returns nothing for fewer than two nodes, or if the others do not compute at all.
std::optional<Straggler> find_straggler(std::span<const StepSeconds> nodes);

// A straggler whose excess is at least this share is reported and, if that lasts, is worth a new plan.
inline constexpr double kNotableExcess = 0.15;
// The same for a single node compared with its plan. A plan is less exact than the times of other nodes, so
// the node must be this much slower.
inline constexpr double kNotableDelay = 1;

// Collects the reports of a group for as long as one node stays notably slow.
class Balance {
 public:
  Balance() = default;
  // For a single node, which was planned to compute for so many seconds in a step.
  explicit Balance(double planned) : planned_(planned) {}

  void add(double now, std::vector<StepSeconds> nodes);
  void forget();  // begins anew: a slow node must stay slow for the whole time again

  const std::vector<StepSeconds>& latest() const { return latest_; }  // empty: none yet
  // The mean computing seconds of each node since one of them became slow. Empty until that has lasted for
  // `seconds` and for several reports.
  std::vector<double> lasting(double now, double seconds) const;

 private:
  std::optional<size_t> notably_slow() const;  // by the latest report

  double planned_ = 0;
  std::vector<StepSeconds> latest_;
  std::vector<double> sums_;  // of the compute times in `reports_` reports
  size_t reports_ = 0, slow_ = 0;
  double since_ = 0;
};

}  // namespace modelet::scheduler
