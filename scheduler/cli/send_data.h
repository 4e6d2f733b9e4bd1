// send_data: puts a run's data into the scheduler's store, from which agents fetch it that cannot read its
// path. Only chunks travel that are not there yet: all the first time, none the second, the rest after an
// attempt that was cut off. However slow the link is, nothing is sent again unless the scheduler asks for
// that or the connection was lost.
#pragma once

#include <string>

#include "comm/control.h"
#include "scheduler/cli/report.h"
#include "shard/data/dataset.h"

namespace modelet::cli {

// `server`: the scheduler's port for data. `what` ("train", "test") names the data in the events "sending".
// `ask_again`: seconds until a question is repeated that the scheduler has no time for. Returns the data's
// address. Throws Error if the scheduler refuses, or is silent for a minute.
std::string send_data(const comm::control::SchedulerAddress& server, const shard::Dataset& data,
                      const std::string& what, Reporter& reporter, double ask_again = 2);

}  // namespace modelet::cli
