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
//
// The processes end with this object. They also end with the thread that made it, because Linux signals a
// child when the thread that started it ends; so make it on the main thread. Ctrl-C reaches only this
// process, not the others.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/system/clock.h"
#include "base/system/file.h"
#include "comm/control/control.h"

namespace modelet::cli {

struct LocalPoolOptions {
  uint32_t nodes = 1;
  uint32_t threads = 0;  // of each agent; 0: an equal part of the machine's cores, at least 1
  // Folder of modelet-scheduler and modelet-agent; empty: the folder of this program.
  std::filesystem::path programs;
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

  struct Process {
    std::string name;
    pid_t pid = 0;
    std::filesystem::path log;
    bool ended = false;
    std::filesystem::path program;
    std::vector<std::string> arguments;
    double started = 0, restart_at = 0;
    uint32_t quick_ends = 0;  // how often in a row it has ended soon after it was started
  };
  const std::vector<Process>& processes() const { return processes_; }  // scheduler first

 private:
  void start(const LocalPoolOptions& options);
  void add(const std::string& name, const std::filesystem::path& program, std::vector<std::string> arguments);
  void spawn(Process& process);
  void plan_restart(Process& process, const std::string& how);
  comm::KeyPair make_key(const std::string& name);
  std::filesystem::path key_file(const std::string& name) const;
  std::string wait_for_scheduler(const std::filesystem::path& endpoint_file, const LocalPoolOptions& options);
  void wait_for_agents(const LocalPoolOptions& options);
  void stop_all();

  TemporaryFolder temporary_{"pool"};
  const std::filesystem::path& folder_ = temporary_.path();  // keys, sockets, logs
  std::filesystem::path files_;                              // like folder_ closed to other users
  std::filesystem::path kept_;  // files_ becomes this folder; empty: files_ is removed
  std::vector<Process> processes_;
  comm::control::SchedulerAddress scheduler_{""};
  SteadyClock clock_;
  uint32_t restarts_left_ = 0;
};

}  // namespace modelet::cli
