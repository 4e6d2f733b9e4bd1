// Snapshots of a run whose ranks do not share a folder (TrainJob::private_folder). After the same step each rank
// writes its part, as files of a checkpoint (docs/checkpoint_format.md), into its own
// OUT/checkpoints/step-NNNNNNNNNN/, and says so. Rank 0 adds index.json. Who brings the parts to other nodes, and
// removes old ones, is not the trainer's matter.
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
  bool keep = false;             // a checkpoint: the user wants it, too
  std::filesystem::path folder;  // a later one of the same step replaces it
  std::vector<std::string> files;
};

// Called by the training thread, which waits for it.
using SnapshotSink = std::function<void(const WrittenSnapshot&)>;

// The best weights of a run that validates are part of its later snapshots: as files of the best step, with this
// before their names.
inline constexpr const char* kBestPrefix = "best.";

// The names of those files of a snapshot that the folder `job.resume` must have for this rank to go on: the
// index, the files of the modelets that the rank holds by job.owner, of the same modelets in the best weights, and
// the encoder.
std::vector<std::string> files_needed(const TrainJob& job, const shard::CheckpointIndex& index);

// Whether the best weights of the run are those of an earlier step, and so belong to the snapshot as well.
bool has_best_files(const shard::CheckpointIndex& index);

// For a run that is to go on elsewhere from a checkpoint in the folder of a run: the file of each name that a
// snapshot of it has. UsageError if the best weights are missing.
struct NamedFile {
  std::string name;
  std::filesystem::path path;
};
std::vector<NamedFile> snapshot_files(const shard::Checkpoint& checkpoint);

}  // namespace modelet::agent
