// Puts the data of a run, or a checkpoint that it goes on from, into the scheduler's store, from which agents that cannot read its path
// fetch it (comm/content/transfer/transfer.h), and reports how far that is. Only missing chunks travel: all the
// first time, none the second, the rest after an attempt that was cut off.
#pragma once

#include <string>

#include "comm/content/snapshot.h"
#include "comm/control/control.h"
#include "scheduler/client/report.h"
#include "shard/data/store/dataset.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {

// `server`: the scheduler's port for data. `what` ("train", "test") names the data in the events "sending".
// `ask_again`: seconds until a question for which the scheduler has no time is repeated. Returns the address
// of the data. Throws Error if the scheduler refuses, or is silent for a minute.
std::string send_data(const comm::control::SchedulerAddress& server, const shard::Dataset& data,
                      const std::string& what, Reporter& reporter, double ask_again = 2);

// The same for the files of a checkpoint, for a run that goes on from it. `reporter` may be null: nobody is told.
comm::Snapshot send_checkpoint(const comm::control::SchedulerAddress& server,
                               const shard::Checkpoint& checkpoint, Reporter* reporter, double ask_again = 2);

}  // namespace modelet::cli
