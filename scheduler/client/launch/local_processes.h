// LocalProcesses: starts programs as processes on this machine.
//
// The processes end with this object. They also end with the thread that started them, because Linux signals a child
// when that thread ends; so start them on the main thread. Ctrl-C reaches only this process, not the others.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/client/launch/launcher.h"

namespace modelet::cli {

class LocalProcesses final : public Launcher {
 public:
  // The programs log into files in the folder, NAME.log.
  explicit LocalProcesses(std::filesystem::path logs) : logs_(std::move(logs)) {}
  LocalProcesses(const LocalProcesses&) = delete;
  LocalProcesses& operator=(const LocalProcesses&) = delete;
  ~LocalProcesses() override;

  // Programs get the option --exit-with-parent.
  void start(const Program& program) override;
  std::optional<std::string> poll(const std::string& name) override;
  void stop(const std::vector<std::string>& names) override;
  std::string log(const std::string& name) const override;

  struct Process {
    std::string name;
    std::filesystem::path log;
    pid_t pid = 0;
    std::optional<std::string> end;  // as of poll()
  };
  const std::vector<Process>& processes() const { return processes_; }  // in the order of their first start

 private:
  Process& process(const std::string& name);

  const std::filesystem::path logs_;
  std::vector<Process> processes_;
};

}  // namespace modelet::cli
