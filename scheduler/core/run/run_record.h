// The record of a run, which outlives the scheduler (scheduler/ledger/records.h): the submission, the state, the
// group and the stable snapshots. Events have records of their own. Watchers are not recorded; they ask again.
#pragma once

#include "scheduler/core/run/run.h"
#include "scheduler/ledger/records.h"

namespace modelet::scheduler {

// `now` as for Run::status(). The submission is in the record if it was in no record of this run before.
RunRecord record_of(Run& run, double now);
// Reads what record_of() wrote. The result lacks `experiment` and `shape`, which follow from `submit`. Its members
// are away (`node` is 0), and `submitted` is minus the age of the run, because the clock of this process is not
// known here. Throws FormatError that says what is wrong.
Run parse_run(const RunRecord& record);

}  // namespace modelet::scheduler
