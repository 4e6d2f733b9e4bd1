// JobRunner: one job on a thread of its own, from Prepare to RunDone, with its data socket and group.
// What the job has to say goes to the mailbox: Prepared, RunEvent..., and last, always, RunDone.
//
// The public functions belong to the control thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/control.h"
#include "comm/zmq_transport.h"
#include "node_agent/job.h"
#include "node_agent/mailbox.h"

namespace modelet::agent {

class JobRunner {
 public:
  // Starts the thread. `mailbox` must outlive this object.
  JobRunner(const comm::control::PrepareT& prepare, TrainJob job, const JobFactory& make_job,
            comm::ZmqOptions data_socket, Mailbox& mailbox);
  ~JobRunner();  // aborts, and waits for the thread

  uint64_t run() const { return run_; }
  uint64_t step() const;
  void start(std::vector<std::string> endpoints);  // the group is complete
  void request_stop();                             // at the next step boundary, with a checkpoint
  void abort(const std::string& reason);           // now

 private:
  void work(TrainJob job, const JobFactory& make_job, const comm::ZmqOptions& data_socket);
  void train(TrainJob job, const JobFactory& make_job, const comm::ZmqOptions& data_socket);
  void run_in_group(Job& job, std::unique_ptr<comm::ZmqTransport> transport);
  void throw_if_aborted();  // mutex_ held

  const uint64_t run_, group_key_;
  const uint32_t epoch_, rank_;
  const std::vector<std::string> node_names_;
  Mailbox& mailbox_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> endpoints_;  // empty until start()
  bool stop_requested_ = false, aborted_ = false;
  std::string abort_reason_;
  std::shared_ptr<Job> job_;      // null before it is made
  comm::Group* group_ = nullptr;  // while the job runs in it
  std::thread thread_;            // last: it uses the members above
};

}  // namespace modelet::agent
