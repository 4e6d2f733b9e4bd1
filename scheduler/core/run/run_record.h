// A run as text, which outlives the scheduler (scheduler/ledger/records.h): what was submitted, where the run
// stands, its group, and its stable snapshots. Events have records of their own; who watches comes again.
// Pure functions.
#pragma once

#include <string>

#include "scheduler/core/run/run.h"

namespace modelet::scheduler {

// JSON. `now` as for Run::status().
std::string format_run(const Run& run, double now);
// But for experiment and shape, which follow from `submit`. Its members are away; it was submitted, or has
// ended, before the time 0. FormatError that says what is wrong.
Run parse_run(uint64_t id, const std::string& text);

}  // namespace modelet::scheduler
