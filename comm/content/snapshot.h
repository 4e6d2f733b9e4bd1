// Snapshot: the state of a run after a step, as files that lie on several nodes. Each file is known by its
// content, and names the nodes that hold it: whoever needs it may take it from any of them.
//
// As text (the messages Prepare, SnapshotHeld and RunFiles) it is JSON:
//
//   {"epoch": 2, "step": 1600, "keep": false, "files": [
//     {"name": "index.json", "content": "<64 hexadecimal digits>", "bytes": 4711, "holders": ["alpha", ""]}]}
//
// The names are those of a checkpoint's files (shard/modelet/checkpoint.h); "" is the scheduler's store.
// Plain values; thread-safe as such.
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
  bool keep = false;   // a checkpoint: the user gets it, too
  std::vector<SnapshotFile> files;

  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

inline constexpr size_t kMostSnapshotFiles = 1 << 14, kMostHolders = 64;

std::string format_snapshot(const Snapshot& snapshot);
std::string format_snapshots(const std::vector<Snapshot>& snapshots);
// FormatError that says what is wrong: not such JSON, more files or holders than the limits, a file twice, or a
// name that could leave the checkpoint's folder.
Snapshot parse_snapshot(std::string_view json);
std::vector<Snapshot> parse_snapshots(std::string_view json);

}  // namespace modelet::comm
