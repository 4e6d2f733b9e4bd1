// A node as the ledger keeps it, so that a restarted scheduler knows which nodes it misses and which were lost
// (scheduler/ledger/records.h). Pure functions.
#pragma once

#include <cstdint>

#include "comm/control/control.h"
#include "scheduler/ledger/records.h"

namespace modelet::scheduler {

// `lost_at`: as in NodeRecord.
NodeRecord node_record(const comm::control::NodeStatusT& node, uint64_t lost_at);
// Throws FormatError.
comm::control::NodeStatusT absent_node(const NodeRecord& record);

}  // namespace modelet::scheduler
