// LocalPool: a scheduler and some agents as processes on this machine, for `modelet train --nodes N`. The
// programs and messages are those of a pool of machines.
//
// No other process can enter the pool, not even one of another user of this machine. Each process has a key
// of its own, which is made for this pool and ends with it. Scheduler, agents and this process talk over
// loopback, encrypted and authenticated. Agents talk among themselves over sockets in the pool's folder,
// which only this user may enter.
//
// A process that dies is started again, a bounded number of times: the scheduler at the same address with its
// state, which is in the pool's folder, and an agent under its name. What becomes of the run is up to the
// scheduler.
// Make it on the main thread (local_processes.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/system/clock.h"
#include "base/system/file.h"
#include "comm/control/control.h"
#include "scheduler/client/launch/local_processes.h"

namespace modelet::cli {

struct LocalPoolOptions {
  uint32_t nodes = 1;
  uint32_t threads = 0;  // of each agent; 0: an equal part of the machine's cores, at least 1
  // Folder of modelet-scheduler and modelet-agent; empty: the folder of this program.
  std::filesystem::path programs;
  // A file for each node, which the node knows as its private data of the name kOwners; empty: nodes have no such data.
  std::vector<std::filesystem::path> owners = {};
  // Folder for what the processes keep: runs and snapshots. It is made here and removed at the end. Empty:
  // beside the keys.
  std::filesystem::path files = {};
  double start_seconds = 30;  // within which all agents must register
  // Called several times a second while the pool starts; may throw, which ends the pool.
  std::function<void()> check = {};
  uint32_t most_restarts = 10;  // of all processes together, after all have registered
};

// The seconds until a process is started again that has ended so many times in a row soon after it was started.
// It may do so because a disk is full.
double pause_before_restart(uint32_t quick_ends);

class LocalPool {
 public:
  static constexpr const char* kOwners = "owners";

  // Starts all processes and waits until the agents have registered. Throws Error with the end of the log of
  // the process that failed.
  explicit LocalPool(const LocalPoolOptions& options);
  LocalPool(const LocalPool&) = delete;
  LocalPool& operator=(const LocalPool&) = delete;
  ~LocalPool();

  // The address, with the key of a user, who may submit runs.
  const comm::control::SchedulerAddress& scheduler() const { return scheduler_; }
  // The folder of the scheduler's store.
  std::filesystem::path store() const { return files_ / "scheduler" / "store"; }
  // Restarts processes that have ended, and logs that. Throws Error if processes have ended too often.
  void check();
  // When this object ends, what the processes keep is moved into this folder, or one with a number if it
  // exists. Returns the scheduler's state in it.
  std::filesystem::path keep_files(const std::filesystem::path& folder);

  // Scheduler first.
  const std::vector<LocalProcesses::Process>& processes() const { return launcher_.processes(); }

 private:
  struct Member {
    Program program;
    double started = 0;
    std::optional<double> restart_at;  // it has ended
    uint32_t quick_ends = 0;           // how often in a row it has ended soon after it was started
  };

  void start(const LocalPoolOptions& options);
  void add(Program program);
  void start(Member& member);
  void plan_restart(Member& member, const std::string& end);
  std::string wait_for_scheduler(const std::filesystem::path& endpoint_file, const LocalPoolOptions& options);
  void wait_for_agents(const LocalPoolOptions& options);
  void stop_all();

  TemporaryFolder temporary_{"pool"};
  const std::filesystem::path& folder_ = temporary_.path();  // keys, sockets, logs
  std::filesystem::path files_;                              // like folder_ closed to other users
  std::filesystem::path kept_;  // files_ becomes this folder; empty: files_ is removed
  LocalProcesses launcher_{folder_};
  std::vector<Member> members_;
  comm::control::SchedulerAddress scheduler_{""};
  SteadyClock clock_;
  uint32_t restarts_left_ = 0;
};

}  // namespace modelet::cli
