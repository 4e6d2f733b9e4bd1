// Checkpoints: the state of a run at a step boundary, in files that other programs can read
// (docs/checkpoint_format.md).
//
//   RUN/checkpoints/step-0000001434/       one folder a checkpoint
//     index.json                           experiment, data shape, list of the modelets with sizes and
//                                          checksums
//     output.00000000-00004621.safetensors one file a modelet
//     encoder.safetensors                  how text becomes samples (shard/data/encoder.h), if the data needs
//     it
//
// Writing. Every process of the group makes a CheckpointWriter for the same folder and step and writes its
// own modelets; they go to a hidden folder beside. One process (rank 0) collects the entries of all modelets
// and calls commit(), which renames the folder to its final name: a reader, or a crash at any moment, sees a
// whole checkpoint or none, and the previous one stays usable. What crashed attempts left is removed by the
// next commit.
//
// The files belong to the cut, not to the nodes: what four nodes wrote, one can read, and the other way
// round.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cut.h"
#include "base/experiment.h"
#include "base/file.h"
#include "shard/safetensors.h"

namespace modelet::shard {

// One modelet's file in a checkpoint.
struct CheckpointEntry {
  ModeletSpec spec;
  std::string file;  // name inside the checkpoint's folder
  FileDigest digest;
};

// The entry of a modelet whose file another process wrote: the digest is all that has to travel.
CheckpointEntry checkpoint_entry(const ModeletSpec& spec, const FileDigest& digest);

// What index.json holds.
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

  // Writes the state of the text's encoder (Dataset::encoder()).
  FileDigest write_encoder(std::span<const std::byte> state) const;

  // Where the checkpoint will be once it is committed.
  std::filesystem::path folder() const;

  // Makes the checkpoint visible and removes older ones, so that `keep` (>= 1) of this step or before, and
  // the run's best one, remain. `index` has the entries of all modelets in any order. Returns the
  // checkpoint's folder. Error if a file is missing or has another size: then some process wrote to a folder
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

// Puts what has become known of the run since into the index of a checkpoint that is in place, and removes
// older ones as commit() does. A reader, or a crash at any moment, sees the old index or the new one.
void amend_checkpoint(const std::filesystem::path& folder, uint64_t best_step, const std::string& extra,
                      uint32_t keep);

// The checkpoint meant by `path`: a checkpoint's folder itself, or the newest complete one of a run's folder
// or of its checkpoints/ folder. UsageError if there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

// The folder of the run that `path` belongs to, which is what find_checkpoint() takes: the run's folder, its
// checkpoints/ folder or a checkpoint in there. Empty for a checkpoint that lies elsewhere.
std::filesystem::path run_of(const std::filesystem::path& path);

// Where the checkpoint of a step is, if there is one, in a run's folder of checkpoints.
std::filesystem::path checkpoint_of_step(const std::filesystem::path& checkpoints, uint64_t step);

// As find_checkpoint, but of a run its best one (where nothing was held out for validation, the newest): what
// predictions should come from.
std::filesystem::path find_model(const std::filesystem::path& path);

// Makes sure that the checkpoint of `step` in the folder `from` is in `to` as well. UsageError if it is in
// neither.
void bring_checkpoint(const std::filesystem::path& from, uint64_t step, const std::filesystem::path& to);

// A run's folder holds one run: what it has is only continued, and only from its end. UsageError if `run` has
// a checkpoint and `resumed` (empty: nothing is resumed) is not its newest.
void require_one_run(const std::filesystem::path& run, const std::filesystem::path& resumed);

// The same, and nobody else may train into the folder as long as the lock lives: UsageError if somebody does.
// Makes the run's folder.
FileLock take_run_folder(const std::filesystem::path& run, const std::filesystem::path& resumed);

class Checkpoint {
 public:
  // Reads and validates index.json: version, sizes, that the modelets cover every layer exactly, that file
  // names stay inside the folder. FormatError with the path otherwise.
  static Checkpoint open(const std::filesystem::path& folder);

  const CheckpointIndex& index() const { return index_; }
  const std::filesystem::path& folder() const { return folder_; }

  // The file of the modelet with this layer and range (the cut's id does not matter). FormatError if the
  // checkpoint has no such modelet, or if size or checksum differ.
  SafetensorsFile open_modelet(const ModeletSpec& spec) const;

  // The state of the text's encoder; empty if the data needs none. FormatError if size or checksum differ.
  std::vector<std::byte> read_encoder() const;

 private:
  std::filesystem::path folder_;
  CheckpointIndex index_;
};

// The text of index.json, and back. parse: FormatError as Checkpoint::open; `folder` names it in messages.
std::string format_checkpoint_index(const CheckpointIndex& index);
CheckpointIndex parse_checkpoint_index(std::string_view json, const std::filesystem::path& folder);

}  // namespace modelet::shard
