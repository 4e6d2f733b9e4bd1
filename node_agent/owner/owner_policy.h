// OwnerPolicy: the owner of the machine comes first. It decides how many threads a run may use here, from
// three inputs: what others use of the machine, what the owner lends, and what the owner has just asked
// for. It does no I/O and has no clock and no threads. Times are arguments, in seconds from any origin, and
// never go back.
//
// The number of threads goes down fast and up slowly:
// - Cores that others used in both of the last two samples are given up at once. One short burst therefore
//   does nothing.
// - Threads come back only when others have left room for them for `return_seconds`.
// - Others may still wait for cores although the agent uses no more threads than seemed free: they would
//   use more if they could. While that is so, each sample takes away three quarters of the remaining
//   threads. With a sample each second the agent gives up all cores within about five seconds.
//
// An agent without threads is to leave its run to others, which would otherwise wait for it: after
// `patience_seconds`, or at once outside the lent hours and when the owner wants the machine. If its run has
// other nodes, it leaves after kPatienceWithPeers: they miss a silent node soon after that, and then the run
// would lose the steps since its last snapshot. It does not come back before it has threads again.
//
// Memory comes back only when the run is left, because a suspended run keeps its own. So if the machine is
// short of memory for some seconds, the agent is to leave at once. It may come back when nobody has waited
// for memory for `return_seconds`.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "node_agent/machine/host_load.h"
#include "node_agent/owner/preferences.h"

namespace modelet::agent {

struct Allowance {
  uint32_t threads = 0;  // 0: suspended
  bool leave = false;    // leave the pool until this is false again
  std::string reason;    // why there are not all threads; empty: there are
};

// Seconds. Peers miss a silent rank after as many (GroupOptions::missing_seconds), and the scheduler waits a few
// times longer for it.
inline constexpr double kPatienceWithPeers = 3;

class OwnerPolicy {
 public:
  // `threads`: what a run uses if nobody else wants the machine.
  OwnerPolicy(const Preferences& preferences, uint32_t threads);

  // What the owner wants, until resume(). A new request replaces the previous one.
  void pause(double now, std::optional<double> seconds);  // without `seconds`: until resume()
  void drain();
  void resume();

  // Whether the run of this agent has other nodes, which wait while it is suspended.
  void set_peers(bool has_peers) { has_peers_ = has_peers; }

  // `minute`: of the day, in local time. `sample`: covers the time since the last call; empty: not known.
  Allowance decide(double now, int minute, const std::optional<HostSample>& sample);

 private:
  enum class Request { kWork, kPause, kDrain };
  struct Seen {
    double at;
    HostSample sample;
  };

  void follow_load(double now);
  void follow_memory(double now, double pressure);
  uint32_t room_beside(double others, double cores) const;
  std::string why_suspended(int minute) const;
  double patience() const;

  const Preferences preferences_;
  const uint32_t threads_;
  Request request_ = Request::kWork;
  std::optional<double> pause_ends_;
  std::deque<Seen> seen_;  // samples of the last `return_seconds`, and one before them
  uint32_t beside_others_;
  double lowered_at_ = 0;
  std::optional<double> memory_short_since_;  // in each sample since then; empty: not in the last one
  double memory_short_at_ = 0;                // the last time
  bool gives_memory_back_ = false;
  std::optional<double> suspended_since_;
  bool has_peers_ = false, lost_patience_ = false;
};

}  // namespace modelet::agent
