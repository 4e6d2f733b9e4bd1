// Job: what an agent runs for a run. In the programs it is a Trainer; the interface exists so that the agent
// can be tested with a job that fails, hangs or ends at will.
//
// Threads: prepare() and run() on the job's own thread; request_stop(), step() from any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/group.h"
#include "node_agent/trainer.h"

namespace modelet::agent {

class Job {
 public:
  virtual ~Job() = default;
  virtual void prepare() = 0;                                         // as Trainer::prepare
  virtual void run(comm::Group& group, const EventSink& events) = 0;  // as Trainer::run
  virtual void request_stop() = 0;
  virtual uint64_t step() const = 0;
  virtual uint64_t memory_bytes() const = 0;
};

using JobFactory = std::function<std::unique_ptr<Job>(TrainJob)>;

// A Trainer as a Job.
std::unique_ptr<Job> make_training_job(TrainJob job);

}  // namespace modelet::agent
