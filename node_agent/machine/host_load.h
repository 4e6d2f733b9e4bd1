// HostLoad: measures how much others use the cores that this process may use: the machine's owner, and
// whoever else works there. Other agents that give way to the owner do not count as others, because agents
// would make room for each other. If such an agent may use other CPUs as well, the time that it used is taken to
// be spread evenly over its CPUs. It also measures how long processes waited for cores and for memory. The
// kernel does not tell whose processes these were.
//
// One thread. Each sample reads a few files of /proc, which takes some milliseconds on a machine with a
// thousand processes.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace modelet::agent {

struct HostSample {
  double cores = 0;      // cores that this process may use
  double others = 0;     // of these, used by others since the last sample; time taken by a hypervisor counts
  double pressure = -1;  // share of the time in which some process waited for a core; -1: not known
  // The same for memory: the time until pages were written out or read back. Not the
  // share in which all waited (`full` in proc): computing threads of an agent do not wait, so it is near 0.
  double memory_pressure = -1;
};

// Marks this process as an agent that gives way: its control thread gets a slightly lower priority. Agents
// recognise each other by that.
void mark_as_guest();

class HostLoad {
 public:
  // `proc` is where the kernel shows processes; tests use other places. `cpus`: the numbers of the CPUs
  // that this process may use. `self`: its process id.
  HostLoad(std::filesystem::path proc, std::set<int> cpus, int self);
  // For this process.
  HostLoad();

  // The load since the last call. Returns nothing the first time, and if the system does not show it.
  std::optional<HostSample> sample(double now);

 private:
  struct Times {
    double at = 0, busy = 0, waited = -1, waited_for_memory = -1;  // seconds
  };

  struct Guest {
    double used = 0;   // seconds of CPU time
    double share = 1;  // of its CPUs that this process may use, too
  };

  std::optional<Times> read(double now) const;
  double share_of_cpus(const std::filesystem::path& process) const;
  double guests_used();

  const std::filesystem::path proc_;
  const std::set<int> cpus_;
  const int self_;
  const double tick_;  // seconds
  std::optional<Times> last_;
  std::map<int, Guest> guests_;  // agents that give way, including this one
  int looks_ = 0;
};

}  // namespace modelet::agent
