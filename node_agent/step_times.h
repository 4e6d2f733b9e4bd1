// StepTimes: where the time of the steps goes on each node of a group, so that one can see who is slow and
// what the wire costs. Used by the training thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "comm/group.h"

namespace modelet::agent {

class StepTimes {
 public:
  // A step began and ended on this rank; `meters` are those of the group.
  void begin(const comm::Meters& meters);
  void end(double seconds, const comm::Meters& meters);

  // Means per step since the last report, of every rank: an array in rank order, with "node" (its name),
  // "compute_seconds" (all but waiting, encoding and decoding), "codec_seconds" and "wait_seconds". Every
  // rank calls it. A node waits for slower ones and for the wire: the shortest wait is about the wire's part.
  nlohmann::json report(comm::Group& group, comm::Tag tag);

  // Waiting of this rank in all steps so far.
  double total_wait_seconds() const { return total_wait_; }

 private:
  struct Sums {
    double seconds = 0, codec = 0, wait = 0;
  };

  Sums sums_;
  uint64_t steps_ = 0;
  double total_wait_ = 0;
  double codec_before_ = 0, wait_before_ = 0;
};

}  // namespace modelet::agent
