// A run on a pool, from the client's side: submitted, reported until it has ended, its files fetched.
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
  // The pool keeps the run's files, and they are fetched into submission.out, whose path the pool does not get: as
  // many checkpoints as train.keep_checkpoints says. Needs a scheduler with a store, and a RunFolder.
  bool fetch = false;
  // The pool is this process's own, and ends with the run: the folder of its store.
  std::filesystem::path own_store = {};
  double patience = kPatienceSeconds;  // with a scheduler that is away
  std::function<void()> check = {};    // called several times a second; may throw, which ends the watching
};

// Submits, and reports until the run has ended: `modelet train --nodes N` and `modelet submit --watch`. When `stop`
// becomes true the run is asked to stop, which writes a checkpoint. With `fetch` a checkpoint is reported when it is
// here. Returns normally when the run has finished; throws Error if it failed, Interrupted if it was stopped.
void run_on_pool(const comm::control::SchedulerAddress& scheduler, const RunOnPool& run, Reporter& reporter,
                 const std::atomic<bool>& stop);

// Like run_on_pool, for a run that was submitted before. When `stop` becomes true it stops watching, and the
// run goes on.
void watch_on_pool(const comm::control::SchedulerAddress& scheduler, uint64_t run, Reporter& reporter,
                   const std::atomic<bool>& stop, double patience = kPatienceSeconds);

}  // namespace modelet::cli
