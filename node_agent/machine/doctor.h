// Doctor: looks for what keeps a machine from working in a pool, before a run finds it: its clock, its disk, limits of
// this process, the kernel, and the ways to the scheduler and to other nodes. Each finding says what to do.
//
// Nothing is changed, but for files and sockets that are made and removed at once. One thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comm/control/control.h"

namespace modelet::agent {

struct Finding {
  std::string what;  // "disk", "clock", ...
  bool is_well = true;
  std::string found;
  std::string mend;  // a command or an option; empty if it is well
};

struct DoctorOptions {
  std::filesystem::path work_dir;                  // of the agent; empty: its disk is not looked at
  comm::control::SchedulerAddress scheduler = "";  // empty: none is asked
  std::string data_address;        // as the agent's option; empty: that on the way to the scheduler
  std::vector<std::string> peers;  // other nodes, each a host or HOST:PORT
  double seconds = 5;              // that the scheduler and each peer have for an answer
};

std::vector<Finding> examine(const DoctorOptions& options);
// Prints a line for each finding, and one for what mends it, or all as JSON Lines. Throws Error if something is wrong.
void report(const std::vector<Finding>& findings, bool as_json);

}  // namespace modelet::agent
