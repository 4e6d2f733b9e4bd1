// Snapshots (comm/content/snapshot.h) in messages.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/content/snapshot.h"
#include "comm/control/control_generated.h"

namespace modelet::comm::control {

std::vector<std::unique_ptr<SnapshotFileT>> to_tables(const std::vector<comm::SnapshotFile>& files);
std::unique_ptr<SnapshotT> to_table(const comm::Snapshot& snapshot);
// About how many bytes of a message the snapshot takes.
size_t bytes_in_message(const comm::Snapshot& snapshot);
// Throw FormatError, as comm::check().
comm::Snapshot snapshot_of(const SnapshotT& table);
comm::Snapshot snapshot_of(const SnapshotHeldT& message);

}  // namespace modelet::comm::control
