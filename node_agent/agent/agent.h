// Agent: offers this machine to a scheduler and executes what it is given, one run at a time.
//
// The decisions are AgentCore's (node_agent/agent/agent_core.h). This class has the socket, the clock, the
// signals and the job, and two threads. The control thread (the caller of run()) talks to the scheduler, also
// while training; the job has a thread of its own (JobRunner). No failure of a job ends the agent.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/system/clock.h"
#include "base/system/log.h"
#include "comm/control/control.h"
#include "node_agent/agent/agent_core.h"
#include "node_agent/agent/job.h"
#include "node_agent/agent/job_runner.h"
#include "node_agent/agent/mailbox.h"
#include "node_agent/agent/run_data.h"
#include "node_agent/folders/run_owner.h"

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
  bool insecure = false;                         // may do without keys
  std::filesystem::path work_dir = ".";          // runs whose output folder is not given get one in it
  uint64_t snapshot_bytes = uint64_t{32} << 30;  // of snapshots that it holds for others
  std::filesystem::path local_store = {};  // of a scheduler on this machine; empty: it is reached by its port
  CacheOptions cache = {.folder = "cache"};  // of data that the scheduler sends
  double leave_seconds = 60;                 // it works on after it was asked to leave, until it is released
  // Throws UsageError if a job's folders are not allowed; asked before its data is fetched. Null: all are.
  JobCheck check_folders;
  JobFactory make_job;
  LogTail* log = nullptr;        // what is passed on to the scheduler; must outlive the agent. Null: nothing
  Throttle* throttle = nullptr;  // of all jobs; must outlive the agent. Null: all threads, always
  std::shared_ptr<comm::RateLimit> sending;  // to other agents; null: no limit
  double link_bytes_per_second = 125e6;  // of which a part is for snapshots; a guess unless its owner says
  // Called about once a second: the run that this agent works for (0: none), and the steps done.
  std::function<void(uint64_t run, uint64_t step)> on_beat;
};

class Agent {
 public:
  // UsageError if an option is wrong.
  explicit Agent(AgentOptions options);

  // Works until request_stop(); then works on until the scheduler can do without this agent, at most
  // `leave_seconds`, and leaves the pool. Throws Error if the scheduler refuses this agent.
  void run();
  // Async-signal-safe. A second call aborts the run and leaves at once.
  void request_stop();
  // Any thread. Leaves as after request_stop(), but within `seconds`.
  void leave(double seconds, const std::string& reason);

 private:
  void handle(const AgentEvent& event);
  void take_requests();
  void take_mail();
  void listen();
  void tell_trouble();
  void pass_log_on();
  void carry_out(const Send& action);
  void carry_out(const PrepareJob& action);
  void carry_out(const StartJob& action);
  void carry_out(const StopJob& action);
  void carry_out(const AbortJob& action);
  void carry_out(const DropSnapshots& action);
  void carry_out(const AdmitHolders& action);
  void carry_out(const StoreAt& action);
  void carry_out(const AgentLog& action);
  void carry_out(const EndAgent& action);
  TrainJob checked_job(const comm::control::PrepareT& message) const;
  void check_folders(const TrainJob& job, const RunOwner& owner) const;
  std::unique_ptr<Job> owned_job(TrainJob job, const RunOwner& owner, bool goes_on) const;
  std::optional<DataSource> data_source(const comm::control::PrepareT& message) const;
  std::optional<KeptRun> kept_run(const comm::control::PrepareT& message);

  const AgentOptions options_;
  SteadyClock clock_;
  comm::control::ClientSocket socket_;
  Mailbox mailbox_;
  std::atomic<int> stops_requested_{0};
  int stops_told_ = 0;               // to the core
  uint64_t connection_ = 0;          // to the scheduler, counted
  bool is_connection_lost_ = false;  // seen while sending
  bool ended_ = false;
  std::string told_trouble_;  // of the connection, last logged
  double log_passed_at_ = 0;
  std::atomic<uint64_t> kept_pool_{0};  // of the run whose snapshots are kept
  SnapshotKeeper keeper_;
  AgentCore core_;
  std::unique_ptr<JobRunner> runner_;  // null: no job
};

}  // namespace modelet::agent
