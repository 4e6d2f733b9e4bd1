// Events "preparing" (docs/events.md): how far the preparation of a text is.
#pragma once

#include <string>

#include "base/system/clock.h"
#include "node_agent/train/job/train_job.h"
#include "shard/data/store/prepared.h"

namespace modelet::agent {

// Makes a function for shard's preparation of text, which sends an event every `every` seconds. `clock`
// must outlive it. An exception from `events` ends the preparation.
shard::PrepareProgress preparing_events(std::string file, EventSink events, const Clock& clock,
                                        double every = 1);

}  // namespace modelet::agent
