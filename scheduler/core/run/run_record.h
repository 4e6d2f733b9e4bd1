// The record of a run as text, which outlives the scheduler (scheduler/ledger/records.h): the submission, the
// state, the group and the stable snapshots. Events have records of their own. Watchers are not recorded;
// they ask again. Pure functions.
#pragma once

#include <string>

#include "scheduler/core/run/run.h"

namespace modelet::scheduler {

// Returns JSON. `now` as for Run::status().
std::string format_run(const Run& run, double now);
// Reads the text of format_run(). The result lacks `experiment` and `shape`, which follow from `submit`. Its
// members are away (`node` is 0), and `submitted` is minus the age of the run, because the clock of this
// process is not known here. Throws FormatError that says what is wrong.
Run parse_run(uint64_t id, const std::string& text);

}  // namespace modelet::scheduler
