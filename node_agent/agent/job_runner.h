// JobRunner: one job on a thread of its own, for one epoch of a run, from Prepare to RunDone, with its data
// socket and group. Before the job prepares, the data of the run is looked for, and fetched if this machine
// does not have it. The job's messages go to the mailbox: Prepared, RunEvent and PeerMissed, and always RunDone
// as the last one. That says `retry` if the job was aborted or lost a peer: another group need not meet that.
//
// The public functions belong to the control thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/collectives/group.h"
#include "comm/content/snapshot.h"
#include "comm/control/control.h"
#include "comm/transport/zmq.h"
#include "node_agent/agent/job.h"
#include "node_agent/agent/mailbox.h"
#include "node_agent/agent/run_data.h"
#include "node_agent/snapshots/snapshot_keeper.h"

namespace modelet::agent {

// A run whose ranks share no folder: who keeps its snapshots, and the one that it goes on from.
struct KeptRun {
  SnapshotKeeper* keeper = nullptr;  // outlives the JobRunner
  SnapshotKeeper::Group group;
  std::optional<comm::Snapshot> from;
};

// An earlier group of the run has trained into its folder, which all ranks see: this one goes on from the newest
// checkpoint there, if there is one.
bool goes_on_in_folder(const comm::control::PrepareT& prepare);

class JobRunner {
 public:
  // Starts the thread. `mailbox` must outlive this object. `check` throws if the job is not allowed, which is
  // asked before data is fetched for it. `data`: none if the paths of the experiment are valid here. `kept`:
  // none if all ranks see the folder of the run.
  JobRunner(const comm::control::PrepareT& prepare, TrainJob job, JobCheck check, JobFactory make_job,
            comm::ZmqOptions data_socket, Mailbox& mailbox, std::optional<DataSource> data = {},
            std::optional<KeptRun> kept = {});
  ~JobRunner();  // aborts, and waits for the thread

  uint64_t run() const { return run_; }
  int size() const { return size_; }
  uint64_t step() const;
  void start(std::vector<comm::Peer> ranks);  // the group is complete
  void request_stop();                        // at the next step boundary, with a checkpoint
  void abort(const std::string& reason);      // now; prepare() is waited for, unless it prepares text

 private:
  void work(TrainJob job, const JobCheck& check, const JobFactory& make_job);
  void train(TrainJob description, const JobCheck& check, const JobFactory& make_job);
  void bring_snapshot(TrainJob& job) const;
  void post_event(const nlohmann::json& event);
  void post_missed(int rank, const std::string& why);
  void check_wanted() const;
  std::vector<comm::Peer> wait_for_start();
  bool aborted() const;
  void enter_group(comm::Group& group);
  void leave_group();

  const uint64_t run_;
  const comm::GroupOptions group_options_;
  const int rank_, size_;
  const comm::ZmqOptions data_socket_;
  Mailbox& mailbox_;
  const bool goes_on_in_folder_;
  const std::optional<DataSource> source_;
  const std::optional<KeptRun> kept_;
  Throttle* const throttle_;     // lets a job that shall end go on; null: there is none
  std::optional<RunData> data_;  // what the job maps; the job's thread has it

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<comm::Peer> ranks_;  // empty until start()
  bool stop_requested_ = false, aborted_ = false;
  std::string abort_reason_;
  std::unique_ptr<Job> job_;      // null before it is made
  comm::Group* group_ = nullptr;  // while the job runs in it
  std::thread thread_;
};

}  // namespace modelet::agent
