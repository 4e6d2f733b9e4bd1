// What an agent does for one rank of a run, apart from threads, sockets and its disk: what the scheduler's
// Prepare message asks for, which files of a snapshot are needed, and what the scheduler is told when the job
// has failed. The agent and the simulation (tests/simulation) share it. Functions without state.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "comm/content/snapshot.h"
#include "comm/control/control.h"
#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

// The job of the rank. What depends on the machine is not set: threads, folders and the rate of snapshots.
// Throws FormatError if the message makes no sense.
TrainJob job_of(const comm::control::PrepareT& prepare);

// Puts the files with these names into the folder, from the own disk or from another node's.
using BringFiles =
    std::function<void(std::span<const std::string> names, const std::filesystem::path& folder)>;
// Brings the files of a snapshot from which the rank goes on, and sets job.resume. Throws PeerError if nodes
// do not have them now: another group may not miss them.
void bring_snapshot(const comm::Snapshot& snapshot, TrainJob& job, const BringFiles& bring);

// Completes what the scheduler is told of a job that ended with this exception. `done` has the run and the
// epoch. `aborted`: by the agent.
void set_failure(comm::control::RunDoneT& done, const std::exception_ptr& failure, bool aborted);

}  // namespace modelet::agent
