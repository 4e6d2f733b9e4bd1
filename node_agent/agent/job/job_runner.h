// JobRunner: runs one job on a thread of its own, for one epoch of a run, from Prepare to RunDone, with its
// data socket and group. Before the job prepares, the run's data is fetched if this machine does not have
// it. The job's messages go to the mailbox: Prepared, RunEvent and PeerMissed, and always RunDone as the
// last one. RunDone says `retry` if the job was aborted or lost a peer, because another group may not meet
// that problem.
//
// The control thread calls the public functions.
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
#include "node_agent/agent/core/mailbox.h"
#include "node_agent/agent/job/job.h"
#include "node_agent/agent/job/run_data.h"
#include "node_agent/snapshots/snapshot_service.h"

namespace modelet::agent {

// Who keeps the snapshots of a run, and the snapshot that it goes on from.
struct RunSnapshots {
  SnapshotService& service;  // must outlive the JobRunner
  SnapshotService::Group group = {};
  std::optional<comm::Snapshot> from = {};  // empty: the run begins
};

class JobRunner {
 public:
  // Starts the thread. `mailbox` must outlive this object. `data` is empty if the paths of the experiment are
  // valid here.
  JobRunner(const comm::control::PrepareT& prepare, TrainJob job, JobFactory make_job,
            comm::ZmqOptions data_socket, Mailbox& mailbox, RunSnapshots snapshots,
            std::optional<DataSource> data = {});
  ~JobRunner();  // aborts, and waits for the thread

  uint64_t run() const { return run_; }
  int size() const { return size_; }
  uint64_t step() const;
  // Steps that this job has done. Those before the checkpoint that it goes on from do not count.
  uint64_t steps_here() const;
  uint64_t steps_learned() const;  // as Trainer::steps_learned
  void start(std::vector<comm::Peer> ranks);  // call it when the group is complete
  void request_stop();                        // after the current step, with a checkpoint
  void request_trace(uint32_t steps);         // as Trainer::request_trace; nothing before it runs
  void abort(const std::string& reason);      // at once; but prepare() is waited for, unless it prepares text

 private:
  void work(TrainJob job, const JobFactory& make_job);
  std::unique_ptr<comm::ZmqTransport> listen() const;
  void train(TrainJob description, const JobFactory& make_job);
  void bring_snapshot(TrainJob& job) const;
  void post_event(const nlohmann::json& event);
  void post_missed(int rank, const std::string& why, bool over = false);
  void leave_room() const;
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
  const std::optional<DataSource> source_;
  const RunSnapshots snapshots_;
  Throttle* const throttle_;     // lets a suspended job go on to its end; null: none
  std::optional<RunData> data_;  // the data that the job maps; used by the job's thread

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<comm::Peer> ranks_;  // empty until start()
  bool stop_requested_ = false, aborted_ = false;
  std::string abort_reason_;
  std::unique_ptr<Job> job_;      // null before it is made
  comm::Group* group_ = nullptr;  // while the job runs in it
  uint64_t first_step_ = 0;       // of the job when it entered the group
  uint64_t steps_done_ = 0;       // in the group that it has left
  uint64_t steps_learned_ = 0;    // there
  std::thread thread_;
};

}  // namespace modelet::agent
