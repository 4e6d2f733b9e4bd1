// The invariants of core.h that show in what a Core displays and sends. For tests and fuzz targets that send it
// messages in any order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "comm/control/control.h"
#include "tests/scheduler/core/core_harness.h"

namespace modelet::scheduler::test {

class Invariants {
 public:
  // Call it after each event. Returns what is wrong; empty: nothing.
  std::string wrong_with(const Core& core) {
    std::map<uint64_t, msg::RunState> states;
    for (const msg::RunStatusT& run : core.runs()) {
      states[run.run] = run.state;
      last_run_ = std::max(last_run_, run.run);
      const auto ended = ended_.find(run.run);
      if (ended == ended_.end()) {
        if (has_ended(run.state)) ended_[run.run] = run;
      } else if (run.state != ended->second.state || run.detail != ended->second.detail ||
                 run.step != ended->second.step) {
        return "invariant 2: a run that has ended changed";
      }
    }
    for (const msg::NodeStatusT& node : core.nodes()) {
      if (node.run == 0) continue;
      const auto state = states.find(node.run);
      if (state == states.end()) return "invariant 1: a node works for a run that does not exist";
      if (state->second == msg::RunState::Queued) return "invariant 1: a node works for a queued run";
    }
    return "";
  }
  // The same for each message that the Core sends.
  std::string wrong_with(const std::string& to, const msg::FromSchedulerMessage& message) {
    const auto* prepare = std::get_if<msg::PrepareT>(&message);
    if (prepare == nullptr) return "";
    if (prepare->rank >= prepare->size) return "a rank is outside of its group";
    const uint32_t former = std::exchange(epochs_[{to, prepare->run}], prepare->epoch);
    return prepare->epoch > former ? "" : "invariant 4: the epoch of a run did not grow";
  }

  uint64_t last_run() const { return last_run_; }
  // The epoch in which a peer was last asked to work for a run; 0: never.
  uint32_t epoch(const std::string& peer, uint64_t run) const {
    const auto found = epochs_.find({peer, run});
    return found == epochs_.end() ? 0 : found->second;
  }
  int finished_runs() const {
    return static_cast<int>(std::ranges::count_if(
        ended_, [](const auto& entry) { return entry.second.state == msg::RunState::Finished; }));
  }

 private:
  uint64_t last_run_ = 0;
  std::map<uint64_t, msg::RunStatusT> ended_;
  std::map<std::pair<std::string, uint64_t>, uint32_t> epochs_;
};

}  // namespace modelet::scheduler::test
