// Planning: the plan that a run has requested. It arrives as an event of its own, up to seconds later. Until then the
// free nodes that it would use are reserved for the run. Part of Run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/core/run/group.h"
#include "scheduler/plan/planning.h"

namespace modelet::scheduler {

class Planning {
 public:
  enum class Purpose : uint8_t {
    kStart,  // the run is queued
    kGain,   // the run is running; the plan only tells whether another placement would be worth a new group
    kGoOn    // the group changes
  };
  struct Wanted {
    Purpose purpose = Purpose::kStart;
    std::vector<Member> nodes;  // in the order of the plan
    // For kGain: the slowest member, its seconds a step, how many times longer than planned that is (0: it is
    // not slow, but other nodes could help), and how long the run would still take.
    size_t slowest = 0;
    double slowest_seconds = 0, slower = 0, seconds_left = 0;
  };

  bool is_open() const { return wanted_.has_value(); }
  bool is_for(Purpose purpose) const { return wanted_ && wanted_->purpose == purpose; }
  bool includes(uint64_t node) const;

  // `request` lacks its number and its nodes.
  void request(Pool& pool, PlanRequest request, Wanted wanted);
  // Withdraws the request for a plan that is no longer wanted. Does nothing if there is none.
  void forget(Pool& pool);
  // The answer to request `number` has come. Returns nothing if that request was forgotten.
  std::optional<Wanted> answered(Pool& pool, uint64_t number);

 private:
  Wanted end(Pool& pool);

  uint64_t run_ = 0, number_ = 0;  // of the request
  std::optional<Wanted> wanted_;
};

}  // namespace modelet::scheduler
