// Puts the data of a run, or the checkpoint that it continues from, into the scheduler's store and reports
// the progress. Agents that cannot read the paths fetch the files from there
// (comm/content/transfer/transfer.h). Only missing chunks travel: all of them the first time, none the
// second, and the rest after an attempt that was cut off.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "comm/content/snapshot.h"
#include "comm/control/control.h"
#include "scheduler/client/pool_client.h"
#include "scheduler/client/report.h"
#include "shard/data/store/dataset.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {

// `server` is the scheduler's port for data. `what` ("train", "test") names the data in the events "sending".
// `ask_again` is the number of seconds after which a question is repeated if the scheduler had no time for
// it. Returns the address of the data. Throws Error if the scheduler refuses, or is silent for a minute.
std::string send_data(const comm::control::SchedulerAddress& server, const shard::Dataset& data,
                      const std::string& what, Reporter& reporter, double ask_again = 2);

// The same for the files of a checkpoint from which a run continues. If `reporter` is null, nothing is
// reported. `check` is called several times a second; it may throw, which ends the sending.
comm::Snapshot send_checkpoint(const comm::control::SchedulerAddress& server,
                               const shard::Checkpoint& checkpoint, Reporter* reporter, double ask_again = 2,
                               std::function<void()> check = {});

// What a run begins with: nothing, or the checkpoint `resume` (agent::TowerRun::start_of()). Of a run of towers also the
// division of the labels among its tasks. Sets the members of `submission` that name them.
void send_start(const comm::control::SchedulerAddress& server, const std::filesystem::path& resume, Submission& submission,
                Reporter* reporter, double ask_again = 2, const std::function<void()>& check = {});

}  // namespace modelet::cli
