#include "node_agent/agent/job/rank_of_run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/experiment/towers.h"
#include "base/system/log.h"
#include "base/system/process.h"
#include "base/text/without_quotes.h"
#include "comm/control/shape_tables.h"
#include "node_agent/train/job/same_run.h"
#include "node_agent/train/job/snapshot.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::agent {

using comm::control::Outcome;
using comm::control::PrepareT;

namespace {

constexpr double kLongestBetweenLosses = 1e9;  // seconds

}  // namespace

TrainJob job_of(const PrepareT& prepare) {
  if (prepare.shape == nullptr || prepare.size == 0 || prepare.rank >= prepare.size ||
      prepare.node_names.size() != prepare.size)
    throw FormatError("the scheduler's Prepare message makes no sense");
  TrainJob job;
  job.run = prepare.name;
  job.experiment = parse_experiment(prepare.experiment, "experiment of run " + prepare.name);
  job.shape = comm::control::shape_of(*prepare.shape);
  if (!prepare.division.empty()) {
    const Experiment::Model& model = job.experiment.model;
    job.tower = {.task = prepare.task, .towers = model.towers, .divisions = model.divisions};
    if (prepare.task >= tower_tasks(model)) throw FormatError("the scheduler's Prepare message names no task");
    job.experiment = tower_experiment(job.experiment);
  }
  const uint32_t replicas = job.experiment.cluster.replicas;
  if (prepare.size % replicas != 0 ||
      prepare.owner.size() != partition_model(job.experiment, job.shape).size() ||
      *std::ranges::max_element(prepare.owner) >= prepare.size / replicas)
    throw FormatError(
        "the scheduler's placement does not fit the experiment: use the same release everywhere");
  job.owner = prepare.owner;
  job.rank = static_cast<int>(prepare.rank);
  job.size = static_cast<int>(prepare.size);
  job.former_groups = std::max(prepare.epoch, 1u) - 1;
  job.private_folder = true;
  job.snapshots.enabled = true;
  job.snapshots.every_steps = (job.experiment.cluster.snapshot_every + 1) / 2;
  job.snapshots.seconds_between_losses =
      std::clamp(prepare.seconds_between_losses, 0.0, kLongestBetweenLosses);
  return job;
}

void bring_snapshot(const comm::Snapshot& snapshot, TrainJob& job, const BringFiles& bring) {
  job.resume = shard::checkpoint_of_step(job.out / "checkpoints", snapshot.step);
  const std::string index[] = {shard::kIndexName};
  try {
    bring(index, job.resume);
    const shard::Checkpoint checkpoint = shard::Checkpoint::open(job.resume);
    require_same_run(checkpoint, job);  // another run's snapshot may not have the needed files
    bring(files_needed(job, checkpoint.index()), job.resume);
  } catch (const Interrupted&) {
    throw;
  } catch (const UsageError&) {
    throw;
  } catch (const FormatError&) {
    throw;
  } catch (const Error& error) {
    throw PeerError(-1, error.what());
  }
}

void set_failure(comm::control::RunDoneT& done, const std::exception_ptr& failure, bool aborted) {
  done.outcome = Outcome::Failed;
  try {
    std::rethrow_exception(failure);
  } catch (const Interrupted& stop) {
    // A job that was stopped has written its checkpoint; one that was aborted has not.
    if (!aborted) done.outcome = Outcome::Interrupted;
    done.retry = aborted;
    done.message = stop.what();
  } catch (const PeerError& error) {
    done.retry = true;
    done.message = error.what();
  } catch (const MisfitError& error) {
    log_for_owner("run {}: {}", done.run, error.what());
    done.message = without_quotes(error);
    done.user_error = true;
  } catch (const UsageError& error) {
    done.message = error.what();
    done.user_error = true;
  } catch (const std::bad_alloc&) {
    done.message = out_of_memory_text();
  } catch (const FormatError& error) {
    log_for_owner("run {}: {}", done.run, error.what());
    done.message = without_quotes(error);
  } catch (const std::exception& error) {
    done.message = error.what();
  }
}

}  // namespace modelet::agent
