// The message for an event of a job: JSON for watchers (docs/events.md), and what the scheduler decides by.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "comm/control/control_generated.h"

namespace modelet::agent {

// Without run and epoch. Paths become names, because no other machine has this node's paths.
comm::control::RunEventT event_message(nlohmann::json event);

}  // namespace modelet::agent
