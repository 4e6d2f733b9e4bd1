// Checkpoints: the state of a run at a step boundary, in files that other programs can read
// (docs/checkpoint_format.md).
//
//   RUN/checkpoints/step-0000001434/       one folder a checkpoint
//     index.json                           experiment, data shape, list of the modelets with sizes and
//                                          checksums
//     output.00000000-00004621.safetensors one file a modelet
//     encoder.safetensors                  how text becomes samples (shard/data/encode/encoder.h), if the
//                                          data needs it
//
// This header is for reading and finding them; shard/modelet/checkpoint_writer.h writes them.
//
// The files belong to the partition, not to the nodes: one node can read what four nodes wrote, and the other
// way round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/system/file.h"
#include "shard/data/store/label_division.h"
#include "shard/format/safetensors.h"
#include "shard/modelet/checkpoint/index.h"

namespace modelet::shard {

// The checkpoint that `path` means: the folder of a checkpoint, or the newest complete one in a run's folder
// or its checkpoints/ folder. UsageError if there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

// Throws `error`, which says that the files of the checkpoint in `folder` are wrong. The text also names the
// newest checkpoint before it in the same folder whose files are all intact (it reads them), if there is one,
// followed by `advice`, in which "{}" stands for that checkpoint.
[[noreturn]] void throw_with_intact(const FormatError& error, const std::filesystem::path& folder,
                                    std::string_view advice);

// The folder of the run that `path` belongs to, where `path` is what find_checkpoint() takes: the run's
// folder, its checkpoints/ or towers/ folder or a checkpoint in it. Empty for a checkpoint that lies elsewhere.
std::filesystem::path run_of(const std::filesystem::path& path);

// Of a run whose towers are not all trained (node_agent/train/towers.h).
inline constexpr const char* kTowersFolder = "towers";

// The names of the labels in a run's folder, a copy of data.labels.
inline constexpr const char* kLabelNamesFile = "labels.txt";

// The path of a step's checkpoint in a run's folder of checkpoints, if there is one.
std::filesystem::path checkpoint_of_step(const std::filesystem::path& checkpoints, uint64_t step);

// Like find_checkpoint(), but of a run it returns the best checkpoint (the newest if nothing was held out for
// validation). Predictions should use this one.
std::filesystem::path find_model(const std::filesystem::path& path);

// Makes sure that the checkpoint of `step` in the folder `from` is also in `to`. UsageError if it is in
// neither.
void bring_checkpoint(const std::filesystem::path& from, uint64_t step, const std::filesystem::path& to);

// A run's folder holds one run, which can only be continued, and only from its end. UsageError if `run` has a
// checkpoint and `resumed` (empty: nothing is resumed) is not its newest.
void require_one_run(const std::filesystem::path& run, const std::filesystem::path& resumed);

// Creates the run's folder, locks it, and then checks the same. While the lock lives, no other run can train
// into the folder. UsageError if another run does so already.
FileLock take_run_folder(const std::filesystem::path& run, const std::filesystem::path& resumed);

class Checkpoint {
 public:
  // Reads and validates index.json: version, sizes, that the modelets cover every layer exactly, that file
  // names stay inside the folder. FormatError with the path otherwise.
  static Checkpoint open(const std::filesystem::path& folder);

  const CheckpointIndex& index() const { return index_; }
  const std::filesystem::path& folder() const { return folder_; }

  // The file of the modelet with this layer and range (the id within the partition does not matter).
  // FormatError if the checkpoint has no such modelet or file, or if size or checksum differ.
  SafetensorsFile open_modelet(const ModeletSpec& spec) const;

  // Of a checkpoint with towers: that of a task. FormatError if its index is missing or differs.
  Checkpoint open_tower(uint32_t task) const;
  // Which labels each tower has. FormatError if size or checksum differ, or if it is none.
  LabelDivision read_division() const;

  // The state of the text encoder; empty if the data needs none. FormatError if size or checksum differ.
  std::vector<std::byte> read_encoder() const;

 private:
  std::filesystem::path folder_;
  CheckpointIndex index_;
};

}  // namespace modelet::shard
