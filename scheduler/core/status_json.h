// The status of nodes and runs as JSON: what `modelet nodes --json` and `modelet list --json` print, and what the page
// of a pool reads. One writer, so that the names of fields are the same everywhere. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "comm/control/control.h"

namespace modelet::scheduler {

const char* state_name(comm::control::NodeState state);  // "free", ...
nlohmann::json to_json(const comm::control::NodeStatusT& node);
nlohmann::json to_json(const comm::control::RunStatusT& run);

}  // namespace modelet::scheduler
