// Agent: offers this machine to a scheduler and executes what it is given, one run at a time.
//
// Two threads. The control thread (the caller of run()) talks to the scheduler and sends a heartbeat once a
// second, also while training; the job has a thread of its own (JobRunner). No failure of a job ends the
// agent. If the scheduler is silent for too long the agent aborts its run and tries to register until the
// scheduler is back.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/system/clock.h"
#include "comm/control/control.h"
#include "node_agent/agent/job.h"
#include "node_agent/agent/job_runner.h"
#include "node_agent/agent/mailbox.h"
#include "node_agent/agent/run_data.h"
#include "node_agent/agent/run_owner.h"

namespace modelet::agent {

struct AgentOptions {
  comm::control::SchedulerAddress scheduler =
      "tcp://127.0.0.1:5570";                           // with keys: data sockets have some, too
  std::string name;                                     // unique in the pool
  uint32_t cores = 1;                                   // threads a run may use
  uint64_t memory_bytes = 0;                            // a run may use
  double gflops = 0, bf16_gflops = 0, memory_gbps = 0;  // measured; all cores together
  // Where other agents reach this machine; empty: its address on the way to the scheduler. Or "ipc://FOLDER":
  // a folder that is closed to other users and shared by all agents of the pool, and whose sockets need no
  // keys.
  std::string data_address;
  bool insecure = false;                     // may do without keys
  std::filesystem::path work_dir = ".";      // runs whose output folder is not given get one in it
  CacheOptions cache = {.folder = "cache"};  // of data that the scheduler sends
  double stop_grace = 60;  // seconds a run may take to stop when the agent is asked to leave
  // Throws UsageError if a job's folders are not allowed; asked before its data is fetched. Null: all are.
  JobCheck check_folders;
  JobFactory make_job;
};

class Agent {
 public:
  // UsageError if an option is wrong.
  explicit Agent(AgentOptions options);

  // Works until request_stop(); then ends the run, if there is one, with a checkpoint, and leaves the pool.
  // Throws Error if the scheduler refuses this agent.
  void run();
  // Async-signal-safe. A second call ends the run at once.
  void request_stop();

 private:
  void beat();
  void forward_mail();
  void on(const comm::control::RegisteredT& message);
  void on(const comm::control::RegisterAgainT& message);
  void on(const comm::control::RefusedT& message);
  void on(const comm::control::PrepareT& message);
  void on(const comm::control::StartT& message);
  void on(const comm::control::StopT& message);
  void on(const comm::control::AbortT& message);
  template <class Other>
  void on(const Other&) {}  // Alive, and what is meant for clients
  void abort_run(const std::string& reason);
  void abort_if_scheduler_is_gone();
  void tell_trouble();
  bool run_has_ended_for_leaving();
  TrainJob checked_job(const comm::control::PrepareT& message) const;
  void check_folders(const TrainJob& job, const RunOwner& owner) const;
  std::unique_ptr<Job> owned_job(TrainJob job, const RunOwner& owner) const;
  std::optional<DataSource> data_source(const comm::control::PrepareT& message) const;

  const AgentOptions options_;
  const uint64_t incarnation_;
  SteadyClock clock_;
  comm::control::ClientSocket socket_;
  Mailbox mailbox_;
  std::atomic<int> stops_requested_{0};
  double next_beat_ = 0;
  double last_heard_ = 0;                          // of the scheduler, or when it was given up
  std::string told_trouble_;                       // of the connection, last logged
  double leaving_since_ = 0, aborting_since_ = 0;  // 0: not
  double heartbeat_ = 1, dead_after_ = 5;          // seconds; the scheduler says
  uint64_t node_ = 0, session_ = 0;                // node 0: not registered
  std::unique_ptr<JobRunner> runner_;              // null: free
};

}  // namespace modelet::agent
