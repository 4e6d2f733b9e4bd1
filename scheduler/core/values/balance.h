// Balance: how long the nodes of a group really take in a step. The first node reports the times of all of
// them (`nodes` of the event "progress", docs/events.md). The scheduler shows which one is slow, and places
// the modelets anew if that lasts. A node is slow if it computes longer than the others; a single node is
// compared with its plan. Pure; what is read here comes from a peer and may be anything.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace modelet::scheduler {

// Seconds of one node in a step, mean over the steps of a report.
struct StepSeconds {
  double compute = 0, codec = 0, wait = 0;
};

// The report in a progress event: one entry for each of `names`, in that order. Nothing if the event has
// none, or a malformed one.
std::optional<std::vector<StepSeconds>> step_seconds(const nlohmann::json& progress,
                                                     std::span<const std::string> names);

struct Straggler {
  size_t node = 0;    // computes longest
  double excess = 0;  // by this share longer than the others in the mean
};
// Nothing for fewer than two nodes, or if the others do not compute at all.
std::optional<Straggler> find_straggler(std::span<const StepSeconds> nodes);

// A straggler by more than this share is worth reporting and, if that lasts, worth a new plan.
inline constexpr double kNotableExcess = 0.15;
// The same for a single node against its plan. The plan is less exact than the times of other nodes, so it
// takes twice as much.
inline constexpr double kNotableDelay = 1;

// Collects the reports of a group for as long as one node stays notably slow.
class Balance {
 public:
  Balance() = default;
  // For a single node that was planned to compute for so many seconds in a step.
  explicit Balance(double planned) : planned_(planned) {}

  void add(double now, std::vector<StepSeconds> nodes);
  void forget();  // who is slow has to be so for as long again

  const std::vector<StepSeconds>& latest() const { return latest_; }  // empty: none yet
  // Mean computing time of each node since one of them became slow, if that has lasted for `seconds` and
  // several reports; else empty.
  std::vector<double> lasting(double now, double seconds) const;

 private:
  std::optional<size_t> notably_slow() const;  // by the latest report

  double planned_ = 0;
  std::vector<StepSeconds> latest_;
  std::vector<double> sums_;  // of compute, over `reports_`
  size_t reports_ = 0, slow_ = 0;
  double since_ = 0;
};

}  // namespace modelet::scheduler
