// Workload: what the runs of a history do, and what they would do undisturbed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "comm/content/snapshot.h"
#include "comm/control/control.h"
#include "comm/control/snapshot_tables.h"
#include "tests/simulation/world.h"

namespace modelet::simulation {

namespace msg = comm::control;

class Job;
struct JobSurroundings;

// What the jobs of a run do, apart from what the experiment says.
struct RunSpec {
  uint64_t steps = 0, snapshot_every = 1;
  double step_seconds = 0.1;
  bool may_have_tasks = false;
};

class Workload {
 public:
  virtual ~Workload() = default;

  // Makes a run of this name, as one of several kinds. May change the number of steps and where snapshots are
  // made.
  virtual msg::SubmitT submission(const std::string& name, RunSpec& spec, uint32_t nodes,
                                  uint32_t output_modelets, uint64_t kind) = 0;
  virtual std::shared_ptr<Job> make_job(JobSurroundings around, const msg::PrepareT& prepare) = 0;
  // A group is formed. Called before its jobs begin.
  virtual void prepared(const msg::PrepareT& prepare) = 0;
  // The files of the snapshot after a step, if the group of this epoch works as it should.
  using Files = std::map<std::string, comm::ContentId>;  // by name
  virtual Files files(uint64_t run, uint32_t epoch, uint64_t step) = 0;
};
using WorkloadFactory = std::function<std::unique_ptr<Workload>(World&)>;

}  // namespace modelet::simulation
