// OwnerService: looks every second what others take of the machine, lets the owner say what is wanted
// (OwnerSocket), and sees to it that a run gets no more than OwnerPolicy allows. It knows the agent only as
// something that can be asked to leave, and that says once in a while what it does.
//
// Threads: two of its own, for the looks and the socket. All public functions from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>

#include "base/parallel/throttle.h"
#include "base/system/clock.h"
#include "node_agent/machine/host_load.h"
#include "node_agent/owner/owner_policy.h"
#include "node_agent/owner/owner_socket.h"

namespace modelet::agent {

struct OwnerOptions {
  std::string name;  // of the agent
  std::filesystem::path work_dir;
  uint32_t threads = 1;  // of a run, if nobody else wants the machine
  Preferences preferences;
  std::function<uint64_t()> bytes_sent = [] { return 0; };  // to other agents, so far
};

class OwnerService {
 public:
  // Asks the agent to leave the pool; called on another thread, once for each agent.
  using LeaveCall = std::function<void(const std::string& reason)>;

  // Throws what OwnerSocket throws.
  explicit OwnerService(OwnerOptions options);
  OwnerService(const OwnerService&) = delete;
  OwnerService& operator=(const OwnerService&) = delete;
  ~OwnerService();

  // What a run's pool of threads asks.
  Throttle& throttle() { return throttle_; }

  // While it lives there is an agent, which is asked to leave when the owner, or others, want the machine. One at
  // a time.
  class Attendance {
   public:
    Attendance(OwnerService& service, LeaveCall leave);
    Attendance(const Attendance&) = delete;
    Attendance& operator=(const Attendance&) = delete;
    ~Attendance();
    // If so, another agent may come when wait_until_wanted() says it.
    bool asked_to_leave() const;

   private:
    OwnerService& service_;
  };
  // Waits until the machine is lent again; false if `stop_fd` gets readable first.
  bool wait_until_wanted(int stop_fd);

  // What the agent does; for the summary. `run` 0: nothing.
  void count(uint64_t run, uint64_t step);
  nlohmann::json status() const;

 private:
  void watch();
  void look(const std::optional<HostSample>& sample);
  nlohmann::json answer(const std::string& request);

  const OwnerOptions options_;
  SteadyClock clock_;
  Throttle throttle_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  OwnerPolicy policy_;
  Allowance allowance_;
  HostSample seen_;  // the last one
  LeaveCall leave_;  // null: there is no agent, or it was asked already
  bool attends_ = false, asked_to_leave_ = false;
  uint64_t run_ = 0, step_ = 0, runs_ = 0, steps_ = 0;
  const double began_;
  double suspended_seconds_ = 0, last_look_;

  HostLoad load_;  // of the watching thread
  std::thread thread_;
  OwnerSocket socket_;  // comes last: it answers at once
};

}  // namespace modelet::agent
