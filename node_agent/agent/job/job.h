// Job: the work of an agent for a run. In the programs it is a Trainer. The interface exists so that tests
// can give the agent a job that fails, hangs or ends at will.
//
// Threads: prepare() and run() are called on the job's own thread; any thread may call request_stop() and
// step().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/collectives/group.h"
#include "node_agent/folders/roots.h"
#include "node_agent/train/job/snapshot.h"
#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

class Job {
 public:
  virtual ~Job() = default;
  virtual void prepare(const EventSink& events) = 0;                  // as Trainer::prepare
  virtual void run(comm::Group& group, const EventSink& events) = 0;  // as Trainer::run
  // Sets the sink that run() tells of this rank's parts of snapshots. Called before run(). Jobs that make
  // no snapshots ignore it.
  virtual void tell_snapshots(SnapshotSink) {}
  virtual void request_stop() = 0;
  virtual uint64_t step() const = 0;
  virtual uint64_t memory_bytes() const = 0;
};

using JobCheck = std::function<void(const TrainJob&)>;
using JobFactory = std::function<std::unique_ptr<Job>(TrainJob)>;

// Makes Trainers. A Trainer reads and writes only beneath the roots (node_agent/folders/roots.h); a job
// that needs other folders is a UsageError.
JobFactory training_jobs(Roots roots);

}  // namespace modelet::agent
