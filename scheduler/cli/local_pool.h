// LocalPool: a scheduler and some agents on this machine, as processes of their own: what `modelet train
// --nodes N` trains on. The same programs, messages and sockets as in a pool of machines; on loopback, with
// ephemeral ports.
//
// The processes end with this object, and also with the thread that made it (Linux tells a child of the end
// of the thread that started it): make it on the main thread. Ctrl-C reaches only this process, not them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace modelet::cli {

struct LocalPoolOptions {
  uint32_t nodes = 1;
  uint32_t threads = 0;  // of each agent; 0: the machine's cores shared out, at least 1 each
  std::filesystem::path
      programs;               // folder of modelet-scheduler and modelet-agent; empty: that of this program
  double start_seconds = 30;  // within which all must have registered
};

class LocalPool {
 public:
  // Starts all, waits until the agents are registered. Throws Error with the end of the log of what failed.
  explicit LocalPool(const LocalPoolOptions& options);
  LocalPool(const LocalPool&) = delete;
  LocalPool& operator=(const LocalPool&) = delete;
  ~LocalPool();

  const std::string& scheduler() const { return scheduler_; }  // address
  // Throws Error if one of the processes has ended.
  void check();

  struct Process {
    std::string name;
    pid_t pid = 0;
    std::filesystem::path log;
    bool ended = false;
  };
  const std::vector<Process>& processes() const { return processes_; }  // scheduler first

 private:
  void start(const LocalPoolOptions& options);
  void spawn(const std::string& name, const std::filesystem::path& program,
             std::vector<std::string> arguments);
  void wait_for_scheduler(const std::filesystem::path& endpoint_file, double seconds);
  void wait_for_agents(uint32_t count, double seconds);
  void stop_all();

  std::filesystem::path folder_;  // logs; removed at the end
  std::vector<Process> processes_;
  std::string scheduler_;
};

}  // namespace modelet::cli
