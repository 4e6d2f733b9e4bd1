// OwnerService: measures every second what others use of the machine, takes requests from the owner
// (OwnerSocket), and makes sure that a run gets no more than OwnerPolicy allows. Of the agent it only needs
// two things: it can ask the agent to leave, and the agent reports from time to time what it does.
//
// A request of the owner holds until another one replaces it, also when the program ends and is started again. It is
// kept in a file beside the socket.
//
// It has two threads, one to measure and one for the socket. Any thread may call the public functions.
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
#include "node_agent/owner/beat.h"
#include "node_agent/owner/learning_ledger.h"
#include "node_agent/owner/owner_policy.h"
#include "node_agent/owner/owner_socket.h"

namespace modelet::agent {

struct OwnerOptions {
  std::string name;  // name of the agent
  std::filesystem::path work_dir;
  uint32_t threads = 1;  // what a run uses if nobody else wants the machine
  Preferences preferences;
  LearningLedger* ledger = nullptr;  // of private data; it must outlive the service. Null: there is none
  std::function<uint64_t()> bytes_sent = [] { return 0; };  // sent to other agents so far
  // Called by wait_until_wanted() when it begins to wait.
  std::function<void(const std::string& reason)> on_away = [](const std::string&) {};
};

class OwnerService {
 public:
  // Asks the agent to leave the pool. Called on another thread, once for each agent.
  using LeaveCall = std::function<void(const std::string& reason)>;

  // Throws like OwnerSocket, and Error if the owner's request cannot be read.
  explicit OwnerService(OwnerOptions options);
  OwnerService(const OwnerService&) = delete;
  OwnerService& operator=(const OwnerService&) = delete;
  ~OwnerService();

  // The throttle that a run's thread pool obeys.
  Throttle& throttle() { return throttle_; }

  // While an Attendance exists, there is an agent. `leave` asks it to leave when the owner, or others, want
  // the machine. Only one may exist at a time.
  class Attendance {
   public:
    Attendance(OwnerService& service, LeaveCall leave);
    Attendance(const Attendance&) = delete;
    Attendance& operator=(const Attendance&) = delete;
    ~Attendance();
    // Whether the agent was asked to leave. Another agent may then start after wait_until_wanted().
    bool asked_to_leave() const;

   private:
    OwnerService& service_;
  };
  // Waits until the machine is lent again. Returns false if `stop_fd` becomes readable first.
  bool wait_until_wanted(int stop_fd);

  void count(const Beat& beat);
  nlohmann::json status() const;
  // Why a run has not all threads; empty: it has.
  std::string why_fewer() const;

 private:
  void watch();
  void look(const std::optional<HostSample>& sample);
  nlohmann::json response(const std::string& request);
  void apply(const std::string& request, std::optional<double> seconds);
  void store_request(const std::string& request, std::optional<double> seconds) const;
  void restore_request();

  const OwnerOptions options_;
  const std::filesystem::path request_file_;
  SteadyClock clock_;
  Throttle throttle_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  OwnerPolicy policy_;
  Allowance allowance_;
  HostSample seen_;  // the last sample
  LeaveCall leave_;  // null: there is no agent, or it was already asked
  bool attends_ = false, asked_to_leave_ = false;
  uint64_t run_ = 0, step_ = 0, runs_ = 0, steps_ = 0;
  uint64_t last_run_ = 0;  // a run that is grouped anew is the same run
  const double began_;
  double suspended_seconds_ = 0, last_look_;

  HostLoad load_;  // used by the watching thread
  std::thread thread_;
  OwnerSocket socket_;  // must be last: it answers requests from its construction on
};

}  // namespace modelet::agent
