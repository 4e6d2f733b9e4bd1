// Misses: which members of a group miss which others. A member that gets on to another step misses nobody of
// the step before. Pure; names of members, steps and seconds go in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace modelet::scheduler {

class Misses {
 public:
  // `by`, which has done `step` steps, misses `name`. A member that was found less than `flap` seconds ago has
  // been missed all the time: its connection comes and goes.
  void add(double now, const std::string& name, const std::string& by, uint64_t step, double flap);
  // `by` misses `name` no longer. Returns true if nobody does.
  bool remove(double now, const std::string& name, const std::string& by);
  // `by` has done `step` steps.
  void passed(const std::string& by, uint64_t step);
  void clear() { misses_.clear(); }

  bool empty() const { return since() == 0; }
  // When the earliest of the misses that still last began; 0: there is none.
  double since() const;
  // For each member that misses another one or is missed: the others with which it is in such a pair. A miss says
  // that two members do not reach each other, and not whose fault that is.
  std::map<std::string, std::set<std::string>> apart() const;

 private:
  struct Miss {
    double since = 0, over = 0;  // over: when it ended; 0: it lasts
    uint64_t step = 0;           // done by who misses
  };
  using ByMember = std::map<std::string, Miss>;  // who misses
  static size_t lasting(const ByMember& misses);

  std::map<std::string, ByMember> misses_;  // who is missed
};

}  // namespace modelet::scheduler
