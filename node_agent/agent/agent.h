// Agent: offers this machine to a scheduler, and executes the runs that it is given, one at a time.
//
// AgentCore (node_agent/agent/core/agent_core.h) makes the decisions. This class has the socket, the clock, the
// signals and the job. There are two threads. The control thread is the caller of run(); it talks to the
// scheduler, also while a job trains. The job has a thread of its own (JobRunner). A job that fails never
// ends the agent.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/system/clock.h"
#include "base/system/log.h"
#include "comm/control/control.h"
#include "node_agent/agent/core/agent_core.h"
#include "node_agent/agent/core/mailbox.h"
#include "node_agent/agent/job/job.h"
#include "node_agent/agent/job/job_runner.h"
#include "node_agent/agent/job/run_data.h"
#include "node_agent/owner/beat.h"
#include "node_agent/owner/preferences.h"
#include "node_agent/owner/private_data.h"

namespace modelet::agent {

struct AgentOptions {
  // If it has keys, data sockets have keys, too.
  comm::control::SchedulerAddress scheduler = "tcp://127.0.0.1:5570";
  std::string name;                                     // unique in the pool
  uint32_t cores = 1;                                   // threads that a run may use
  uint64_t memory_bytes = 0;                            // that a run may use
  double gflops = 0, bf16_gflops = 0, memory_gbps = 0;  // measured; all cores together
  // The address at which other agents reach this machine. Empty: its address on the route to the scheduler.
  // It may be "ipc://FOLDER": a folder that is closed to other users and shared by all agents of the pool;
  // its sockets need no keys.
  std::string data_address;
  bool insecure = false;                         // may work without keys
  std::filesystem::path work_dir = ".";          // holds the folders of runs
  uint64_t snapshot_bytes = uint64_t{32} << 30;  // limit of the snapshots that it holds
  std::filesystem::path local_store = {};    // the scheduler's, if on this machine; empty: its port is used
  CacheOptions cache = {.folder = "cache"};  // for data that the scheduler sends
  double leave_seconds = 60;     // how long it works on, unless it is released, when asked to leave
  int exit_code_when_asked = 0;  // of a process that ends, because it was asked to, while its job does not
  JobFactory make_job;
  PrivateData private_data = {};
  LogTail* log = nullptr;        // passed on to the scheduler; must outlive the agent. Null: nothing is
  Throttle* throttle = nullptr;  // for all jobs; must outlive the agent. Null: all threads, always
  std::shared_ptr<comm::RateLimit> sending;  // limit for what goes to other agents; null: none
  double link_bytes_per_second = 125e6;      // snapshots may use a part of it; a guess unless the owner says
  std::function<void(const Beat&)> on_beat;  // called about once a second
  // Why the throttle lets a run have fewer threads than are offered; empty: it does not. Null: never.
  std::function<std::string()> why_suspended;
};

// Fills in the cores, the memory and the speeds that the options leave open (0), and limits cores, memory,
// sending and fetching to what the owner lends. Speeds are measured, unless both that every run needs are
// given.
void complete_offer(AgentOptions& options, const Preferences& preferences);

// Fills in the data address if the options leave it open. While the scheduler's name cannot be looked up, or there
// is no route to it, this tries again every few seconds. Returns false if `stop_fd` becomes readable first. Throws
// UsageError if the scheduler's address is wrong.
bool find_data_address(AgentOptions& options, int stop_fd);

class Agent {
 public:
  // Throws UsageError if an option is wrong. Looks for an open data address once.
  explicit Agent(AgentOptions options);

  // Works until request_stop(). After that it works on until the scheduler can do without this agent, at
  // most `leave_seconds`, and leaves the pool. Throws Error if the scheduler refuses this agent.
  void run();
  // Async-signal-safe. A second call aborts the run, and the agent leaves at once.
  void request_stop();
  // Any thread. The agent leaves as after request_stop(), but within `seconds`. `comes_back`: another agent of this
  // program is to take its place later.
  void leave(double seconds, const std::string& reason, bool comes_back = false);

 private:
  void handle(const AgentEvent& event);
  void notify_owner();
  Tick tick() const;
  void take_requests();
  void take_mail();
  void listen();
  void log_trouble();
  void pass_log_on();
  void carry_out(const Send& action);
  void carry_out(const PrepareJob& action);
  void carry_out(const StartJob& action);
  void carry_out(const StopJob& action);
  void carry_out(const AbortJob& action);
  void carry_out(const TraceJob& action);
  void carry_out(const DropSnapshots& action);
  void carry_out(const AdmitHolders& action);
  void carry_out(const StoreAt& action);
  void carry_out(const SaveSnapshots& action);
  void carry_out(const AgentLog& action);
  void carry_out(const EndAgent& action);
  TrainJob job_here(const comm::control::PrepareT& message) const;
  std::optional<DataSource> data_source(const comm::control::PrepareT& message) const;
  RunSnapshots snapshots_of(const comm::control::PrepareT& message);

  const AgentOptions options_;
  SteadyClock clock_;
  comm::control::ClientSocket socket_;
  Mailbox mailbox_;
  std::atomic<int> stops_requested_{0};
  int stops_forwarded_ = 0;          // of these, the core has been told
  uint64_t connection_ = 0;          // number of the connection to the scheduler
  bool is_connection_lost_ = false;  // noticed while sending
  bool ended_ = false;
  std::string logged_trouble_;  // trouble with the connection that was logged last
  double log_passed_at_ = 0;
  uint64_t steps_before_ = 0;           // done by earlier jobs
  uint64_t steps_reported_ = 0;         // done, and reported to on_beat
  struct LearnsFrom {                   // the present job, or the last one
    std::string name;                   // of private data; empty: it has none
    uint32_t batch = 0;
    bool is_new = true;     // on_beat does not know of it
    uint64_t reported = 0;  // steps, to on_beat
  } learns_from_;
  std::map<std::string, uint64_t> groups_here_;  // that were formed to learn from private data of a name
  std::atomic<uint64_t> kept_pool_{0};  // pool of the run whose snapshots are kept
  SnapshotService snapshots_;
  AgentCore core_;
  std::unique_ptr<JobRunner> runner_;  // null: no job
};

}  // namespace modelet::agent
