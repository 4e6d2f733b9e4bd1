// Job: the work of an agent for a run. In the programs it is a Trainer. The interface exists so that tests
// can give the agent a job that fails, hangs or ends at will.
//
// Threads: prepare() and run() are called on the job's own thread; any thread may call request_stop(),
// request_trace(), step() and steps_learned().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/collectives/group.h"
#include "node_agent/agent/job/data_roots.h"
#include "node_agent/train/job/snapshot.h"
#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

class Job {
 public:
  virtual ~Job() = default;
  virtual void prepare(const EventSink& events) = 0;  // as Trainer::prepare
  virtual void run(comm::Group& group, const EventSink& events,
                   const SnapshotSink& snapshots) = 0;  // as Trainer::run
  virtual void request_stop() = 0;
  virtual void request_trace(uint32_t /*steps*/) {}  // as Trainer::request_trace
  virtual uint64_t step() const = 0;
  virtual uint64_t steps_learned() const { return 0; }  // as Trainer::steps_learned
  virtual uint64_t memory_bytes() const = 0;
};

using JobFactory = std::function<std::unique_ptr<Job>(TrainJob)>;

// Makes Trainers. A job whose data was not fetched, and does not lie beneath the roots
// (node_agent/agent/job/data_roots.h), is a UsageError.
JobFactory training_jobs(DataRoots roots);

}  // namespace modelet::agent
