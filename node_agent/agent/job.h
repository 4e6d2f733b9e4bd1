// Job: the work of an agent for a run. In the programs it is a Trainer; the interface exists so that the
// agent can be tested with a job that fails, hangs or ends at will.
//
// Threads: prepare() and run() on the job's own thread; request_stop(), step() from any.
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
  // Whom run() tells of this rank's parts of snapshots; called before it. Jobs that make none ignore it.
  virtual void tell_snapshots(SnapshotSink) {}
  virtual void request_stop() = 0;
  virtual uint64_t step() const = 0;
  virtual uint64_t memory_bytes() const = 0;
};

using JobCheck = std::function<void(const TrainJob&)>;
using JobFactory = std::function<std::unique_ptr<Job>(TrainJob)>;

// Makes Trainers. Each reads and writes only beneath the roots (node_agent/folders/roots.h); otherwise
// UsageError.
JobFactory training_jobs(Roots roots);

}  // namespace modelet::agent
