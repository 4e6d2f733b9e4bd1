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
// Writing. Every process of the group makes a CheckpointWriter for the same folder and step and writes its
// own modelets; they go to a hidden folder beside. One process (rank 0) collects the entries of all modelets
// and calls commit(), which renames the folder to its final name: a reader, or a crash at any moment, sees a
// whole checkpoint or none, and the previous one stays usable. What crashed attempts left is removed by the
// next commit.
//
// The files belong to the partition, not to the nodes: one node can read what four nodes wrote, and the other
// way round.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/experiment.h"
#include "base/experiment/partition.h"
#include "base/system/file.h"
#include "shard/format/safetensors.h"

namespace modelet::shard {

// One modelet's file in a checkpoint.
struct CheckpointEntry {
  ModeletSpec spec;
  std::string file;  // name inside the checkpoint's folder
  FileDigest digest;
};

// The entry of a modelet whose file another process wrote: only the digest has to travel.
CheckpointEntry checkpoint_entry(const ModeletSpec& spec, const FileDigest& digest);

// The contents of index.json.
struct CheckpointIndex {
  std::string modelet_version;  // of the program that wrote it, for people
  uint64_t step = 0;            // steps completed
  uint64_t best_step = 0;       // of the run's best checkpoint until now; `step` if it is this one
  Experiment experiment;
  DataShape shape;
  std::vector<CheckpointEntry> modelets;  // in the order of ids
  std::optional<FileDigest> encoder;      // of the text's encoder; shape.encoder is its checksum
  std::string extra = "{}";               // JSON object, nested at most 12 deep: the trainer's own state
};

class CheckpointWriter {
 public:
  // `checkpoints` is the run's folder of checkpoints; created if needed.
  CheckpointWriter(const std::filesystem::path& checkpoints, uint64_t step);

  // Writes one modelet's arrays. May be called from several threads for different modelets.
  CheckpointEntry write_modelet(const ModeletSpec& spec, std::span<const Tensor> tensors,
                                const Metadata& metadata = {}) const;

  // Writes the state of the text encoder (Dataset::encoder()).
  FileDigest write_encoder(std::span<const std::byte> state) const;

  // The path of the checkpoint once it is committed.
  std::filesystem::path folder() const;

  // Makes the checkpoint visible and removes older ones: of those of this step or before, `keep` (>= 1) and
  // the run's best one remain. `index` has the entries of all modelets in any order. Returns the folder of
  // the checkpoint. Error if a file is missing or has another size: then some process wrote to a folder that
  // this one does not see. Call it once, in one process, after all have written.
  std::filesystem::path commit(CheckpointIndex index, uint32_t keep) const;

 private:
  void check_files(const CheckpointIndex& index) const;
  void remove_other_files(const CheckpointIndex& index) const;
  void publish(const std::filesystem::path& target) const;
  void remove_leftovers() const;

  std::filesystem::path parent_, partial_;
  uint64_t step_;
};

// Adds what has become known about the run since to the index of a checkpoint that is in place, and removes
// older ones as commit() does. A reader, or a crash at any moment, sees the old index or the new one.
void amend_checkpoint(const std::filesystem::path& folder, uint64_t best_step, const std::string& extra,
                      uint32_t keep);

// The checkpoint that `path` means: the folder of a checkpoint, or the newest complete one in a run's folder
// or its checkpoints/ folder. UsageError if there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

// The newest checkpoint before `checkpoint`, in the same folder of checkpoints, whose files are all as they
// were written: reads them. What to go on from when that one is damaged.
std::optional<std::filesystem::path> newest_intact_before(const std::filesystem::path& checkpoint);

// The folder of the run that `path` belongs to, where `path` is what find_checkpoint() takes: the run's
// folder, its checkpoints/ folder or a checkpoint in it. Empty for a checkpoint that lies elsewhere.
std::filesystem::path run_of(const std::filesystem::path& path);

// The path of a step's checkpoint in a run's folder of checkpoints, if there is one.
std::filesystem::path checkpoint_of_step(const std::filesystem::path& checkpoints, uint64_t step);

// Like find_checkpoint, but for a run its best checkpoint (the newest if nothing was held out for
// validation): predictions should come from it.
std::filesystem::path find_model(const std::filesystem::path& path);

// Makes sure that the checkpoint of `step` in the folder `from` is also in `to`. UsageError if it is in
// neither.
void bring_checkpoint(const std::filesystem::path& from, uint64_t step, const std::filesystem::path& to);

// A run's folder holds one run, which can only be continued, and only from its end. UsageError if `run` has a
// checkpoint and `resumed` (empty: nothing is resumed) is not its newest.
void require_one_run(const std::filesystem::path& run, const std::filesystem::path& resumed);

// The same, and nobody else may train into the folder while the lock lives: UsageError if somebody does.
// Makes the run's folder.
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

  // The state of the text encoder; empty if the data needs none. FormatError if size or checksum differ.
  std::vector<std::byte> read_encoder() const;

 private:
  std::filesystem::path folder_;
  CheckpointIndex index_;
};

// The text of index.json, and back. parse: FormatError as Checkpoint::open; `folder` names it in messages.
std::string format_checkpoint_index(const CheckpointIndex& index);
CheckpointIndex parse_checkpoint_index(std::string_view json, const std::filesystem::path& folder);

}  // namespace modelet::shard
