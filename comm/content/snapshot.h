// Snapshot: the state of a run after a step, as files on several nodes. Each file is identified by its
// content. A snapshot lists the nodes that hold each file, and whoever needs the file may take it from any
// of them.
//
// In messages it is a table (comm/control/snapshot_tables.h), in the scheduler's ledger JSON:
//
//   {"epoch": 2, "step": 1600, "keep": false, "files": [
//     {"name": "index.json", "content": "<64 hexadecimal digits>", "bytes": 4711, "holders": ["alpha", ""]}]}
//
// The files have the names of a checkpoint's files (shard/modelet/checkpoint.h). The holder "" is the
// scheduler's store. Plain values, without locks.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "comm/content/content.h"

namespace modelet::comm {

struct SnapshotFile {
  std::string name;
  ContentId content;
  uint64_t bytes = 0;
  std::vector<std::string> holders;  // names of nodes

  friend bool operator==(const SnapshotFile&, const SnapshotFile&) = default;
};

struct Snapshot {
  uint32_t epoch = 0;  // of the group that wrote it
  uint64_t step = 0;   // steps completed
  bool keep = false;   // it is also a checkpoint for the user
  std::vector<SnapshotFile> files;

  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

inline constexpr size_t kMostSnapshotFiles = 1 << 14, kMostHolders = 64;

// Throws FormatError if there are more files or holders than the limits allow, a file is listed twice, or a name could
// leave the checkpoint's folder.
void check(const Snapshot& snapshot);

std::set<std::string> addresses_of(const Snapshot& snapshot);  // of its files (comm/content/content.h)

std::string format_snapshot(const Snapshot& snapshot);
std::string format_snapshots(const std::vector<Snapshot>& snapshots);
// Throw FormatError, which says what is wrong: the text is not such JSON, or check() says it.
Snapshot parse_snapshot(std::string_view json);
std::vector<Snapshot> parse_snapshots(std::string_view json);

}  // namespace modelet::comm
