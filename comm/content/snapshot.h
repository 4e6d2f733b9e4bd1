// Snapshot: the state of a run after a step, as files on several nodes. Each file is identified by its
// content. A snapshot lists the nodes that hold each file, and whoever needs the file may take it from any
// of them.
//
// In the messages Prepare, SnapshotHeld and RunFiles it is JSON:
//
//   {"epoch": 2, "step": 1600, "keep": false, "files": [
//     {"name": "index.json", "content": "<64 hexadecimal digits>", "bytes": 4711, "holders": ["alpha", ""]}]}
//
// The files have the names of a checkpoint's files (shard/modelet/checkpoint.h). The holder "" is the
// scheduler's store. Plain values, without locks.
#pragma once

#include <cstdint>
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

std::string format_snapshot(const Snapshot& snapshot);
// Leaves out the last ones if the text would have more than `most_bytes` bytes. The first is always there.
std::string format_snapshots(const std::vector<Snapshot>& snapshots, size_t most_bytes = SIZE_MAX);
// Throw FormatError, which says what is wrong: the text is not such JSON, there are more files or holders
// than the limits allow, a file is listed twice, or a name could leave the checkpoint's folder.
Snapshot parse_snapshot(std::string_view json);
std::vector<Snapshot> parse_snapshots(std::string_view json);

}  // namespace modelet::comm
