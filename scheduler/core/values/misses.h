// Misses: which members of a group miss which others at the step that the group has reached. A step that is
// done by all is news of all, so it ends every miss. Pure; names of members and seconds go in.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace modelet::scheduler {

class Misses {
 public:
  // `by` misses `name` after step `step`. A member that was found less than `flap` seconds ago has been missed
  // all the time: its connection comes and goes.
  void add(double now, uint64_t step, const std::string& name, const std::string& by, double flap);
  // `by` misses `name` no longer. Returns true if nobody does.
  bool remove(double now, const std::string& name, const std::string& by);
  void clear() { misses_.clear(); }

  bool empty(uint64_t step) const { return since(step) == 0; }
  // When the earliest of the misses that still last began; 0: there is none at this step.
  double since(uint64_t step) const;
  // Whom most members miss; empty: nobody is missed.
  std::string most_missed() const;

 private:
  struct Miss {
    double since = 0, over = 0;  // over: when it ended; 0: it lasts
  };
  using ByMember = std::map<std::string, Miss>;  // who misses
  static size_t lasting(const ByMember& misses);

  std::map<std::string, ByMember> misses_;  // who is missed
  uint64_t step_ = 0;
};

}  // namespace modelet::scheduler
