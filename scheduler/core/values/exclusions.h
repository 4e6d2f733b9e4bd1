// Exclusions: the nodes with which no group of a run is formed for a while, and why. Pure; names of nodes and seconds
// go in.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace modelet::scheduler {

class Exclusions {
 public:
  // True if the node was never excluded before.
  bool add(const std::string& node, double until, const std::string& why);
  bool has(const std::string& node, double now) const;
  // Why the run does without nodes, for people who wonder what it waits for.
  std::string text(double now) const;

  // How often a node was excluded although nothing says that it is at fault.
  uint32_t doubts(const std::string& node) const;
  void doubt(const std::string& node) { ++doubts_[node]; }

 private:
  struct Exclusion {
    double until = 0;
    std::string why;
  };
  std::map<std::string, Exclusion> exclusions_;
  std::map<std::string, uint32_t> doubts_;
};

}  // namespace modelet::scheduler
