// OwnerPolicy: the owner of the machine comes first. Decides how many threads a run may use here, out of what
// others take of the machine, what the owner lends, and what the owner has just asked for. No I/O, no clock, no
// threads: times are given, in seconds from anywhere, and never go back.
//
// Down is fast and up is slow. What others used in both of the last two samples counts at once, so that one
// short burst does nothing. More threads come back only when others have left room for them for
// `return_seconds`. If others work, and somebody waits for a core although this machine's threads have been
// reduced to what seemed free (the others would take more if they could), three quarters of the rest go in each
// sample. So with a sample each second it lets go of all cores within about five.
//
// With no thread for `patience_seconds`, or at once outside the lent hours and when the owner wants it, the
// agent is to leave its run to others: they would wait for it.
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
  bool leave = false;    // the pool, until this is false again
  std::string reason;    // why not all threads; empty: all
};

class OwnerPolicy {
 public:
  // `threads`: of a run, if nobody else wants the machine.
  OwnerPolicy(const Preferences& preferences, uint32_t threads);

  // What the owner wants, until resume(). Each replaces the one before it.
  void pause(double now, std::optional<double> seconds);  // none: until resume()
  void drain();
  void resume();

  // `minute`: of the day, local time. `sample`: of the time since the last call; none: unknown.
  Allowance decide(double now, int minute, const std::optional<HostSample>& sample);

 private:
  enum class Wish { kWork, kPause, kDrain };
  struct Seen {
    double at;
    HostSample sample;
  };

  void follow_load(double now);
  uint32_t room_beside(double others, double cores) const;
  std::string why_suspended(int minute) const;

  const Preferences preferences_;
  const uint32_t threads_;
  Wish wish_ = Wish::kWork;
  std::optional<double> pause_ends_;
  std::deque<Seen> seen_;  // of the last `return_seconds`, and one before them
  uint32_t beside_others_;
  double lowered_at_ = 0;
  std::optional<double> suspended_since_;
};

}  // namespace modelet::agent
