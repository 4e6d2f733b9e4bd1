// Snapshots of a run whose ranks do not share a folder (TrainJob::private_folder). After the same step each
// rank writes its part, as files of a checkpoint (docs/checkpoint_format.md), into its own
// OUT/checkpoints/step-NNNNNNNNNN/, and reports that. Rank 0 adds index.json. The trainer neither takes the
// parts to other nodes nor removes old ones (node_agent/snapshots does).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "node_agent/train/job/train_job.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::agent {

// This rank's part of a snapshot, complete and in place.
struct WrittenSnapshot {
  uint64_t step = 0;             // steps completed
  bool keep = false;             // it is also a checkpoint for the user
  std::filesystem::path folder;  // a later snapshot of the same step replaces it
  std::vector<std::string> files;
};

// Called on the training thread, which waits for it.
using SnapshotSink = std::function<void(const WrittenSnapshot&)>;

// If a run validates, its later snapshots contain the best weights as well: as files of the best step, with
// this prefix.
inline constexpr const char* kBestPrefix = "best.";

// The files of a snapshot that the folder `job.resume` must have so that this rank can go on: the index,
// the encoder, and the files of the modelets that the rank holds by job.owner, also in the best weights.
std::vector<std::string> files_needed(const TrainJob& job, const shard::CheckpointIndex& index);

// Whether the run's best weights are those of an earlier step, so that the snapshot contains them as well.
bool has_best_files(const shard::CheckpointIndex& index);

// For a run that is to go on elsewhere from a checkpoint in a run's folder: the path for each name that a
// snapshot of this checkpoint has. Throws UsageError if the best weights are missing.
struct NamedFile {
  std::string name;
  std::filesystem::path path;
};
std::vector<NamedFile> snapshot_files(const shard::Checkpoint& checkpoint);

}  // namespace modelet::agent
