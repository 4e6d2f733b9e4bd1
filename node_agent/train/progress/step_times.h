// StepTimes: measures where the time of the steps goes on each node of a group. It shows which node is slow
// and what the wire costs. Used by the training thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "node_agent/replicas/rank_grid.h"

namespace modelet::agent {

class StepTimes {
 public:
  // Call these when a step begins and ends on this rank. `totals` are those of the grid.
  void begin(const RankGrid::Totals& totals);
  void end(double seconds, const RankGrid::Totals& totals);

  // The means per step since the last report, for every rank: an array in rank order, with "node" (its
  // name), "compute_seconds" (all but waiting, encoding and decoding), "codec_seconds" and "wait_seconds".
  // Every rank must call it. A node waits for slower nodes and for the wire. The shortest wait is about the
  // part of the wire.
  nlohmann::json report(RankGrid& grid, comm::Tag tag);

  // The waiting time of this rank in all steps so far.
  double total_wait_seconds() const { return total_wait_; }

 private:
  struct Sums {
    double seconds = 0, codec = 0, wait = 0;
  };

  Sums sums_;
  uint64_t steps_ = 0;
  double total_wait_ = 0;
  RankGrid::Totals before_;
};

}  // namespace modelet::agent
