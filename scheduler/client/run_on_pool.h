// A run on a pool as its client sees it: it is submitted and reported until it has ended, and its files are
// fetched.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "comm/control/control.h"
#include "scheduler/client/pool_client.h"
#include "scheduler/client/report.h"

namespace modelet::cli {

struct RunOnPool {
  Submission submission;
  // The folder into which this process fetches the run's files while they come: as many checkpoints as
  // train.keep_checkpoints says. Needs a scheduler with a store, and a RunFolder that holds the folder. Empty:
  // they stay in the pool.
  std::filesystem::path out = {};
  // If the pool belongs to this process and ends with the run: the folder of its store.
  std::filesystem::path own_store = {};
  // Called if files of the run are only in own_store, because they could not be placed in `out`.
  // Returns the state of a scheduler (modelet-scheduler --state) that has them, also after this process. Goes
  // with own_store.
  std::function<std::filesystem::path()> keep_store = {};
  // Seconds for which the scheduler may be away, and for which placing files from own_store is tried again.
  double patience = kPatienceSeconds;
  std::function<void()> check = {};  // called several times a second; may throw, which ends the watching
};

// Submits a run and reports it until it has ended, for `modelet train --nodes N` and `modelet submit
// --watch`. When `stop` becomes true, the run is asked to stop, which writes a checkpoint, and a scheduler
// that is away is not waited for. With `out`, a checkpoint is reported once its files are there. Returns
// normally if the run has finished. Throws Error if it failed, Interrupted if it was stopped.
void run_on_pool(const comm::control::SchedulerAddress& scheduler, const RunOnPool& run, Reporter& reporter,
                 const std::atomic<bool>& stop);

// Like run_on_pool, for a run that was submitted before. When `stop` becomes true, the watching stops and the
// run goes on.
void watch_on_pool(const comm::control::SchedulerAddress& scheduler, uint64_t run, Reporter& reporter,
                   const std::atomic<bool>& stop, double patience = kPatienceSeconds);

}  // namespace modelet::cli
