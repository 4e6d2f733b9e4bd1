// What others take of the cores that this process may use: the machine's owner, and whoever else works there.
// Other agents that give way to the owner are not "others": they would make room for each other.
//
// One thread. Reads /proc a few times at each sample: some milliseconds on a machine with a thousand
// processes.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace modelet::agent {

struct HostSample {
  double cores = 0;   // that this process may use
  double others = 0;  // of them used by others since the last sample, in cores; what a hypervisor took counts
  double pressure = -1;  // share of the time in which somebody waited for a core; -1: the system does not say
};

// Marks this process as an agent that gives way: its control thread is a little less urgent than others'.
// Agents know each other by it.
void mark_as_guest();

class HostLoad {
 public:
  // `proc` is where the kernel shows processes; tests use other places. `cpus`: numbers of those that this
  // process may use. `self`: its process id.
  HostLoad(std::filesystem::path proc, std::set<int> cpus, int self);
  // Of this process.
  HostLoad();

  // Since the last call; nothing the first time, and if the system does not show it.
  std::optional<HostSample> sample(double now);

 private:
  struct Times {
    double at = 0, busy = 0, waited = -1;  // seconds
  };

  std::optional<Times> read(double now) const;
  double guests_used();

  const std::filesystem::path proc_;
  const std::set<int> cpus_;
  const int self_;
  const double tick_;  // seconds
  std::optional<Times> last_;
  std::map<int, double> guests_;  // agents that give way, this one among them -> seconds of CPU time used
  int looks_ = 0;
};

}  // namespace modelet::agent
