// CheckpointWriter: writes checkpoints (shard/modelet/checkpoint.h).
//
// Every process of the group makes a CheckpointWriter for the same step and writes its own modelets into a
// hidden folder beside the checkpoints. Then the folder is renamed to its final name: a reader, or a crash at
// any moment, sees it whole or not at all, and the previous one stays usable. The next commit removes what
// crashed attempts left.
//
//   - kShared: all processes see the same folder. One of them (rank 0) collects the entries of all modelets
//     and calls commit().
//   - kPrivate: each process has a folder of its own, from which others get what they need. Each process
//     calls commit_part() when it knows the entries of all. Files are not synced: copies lie on other
//     machines, and every user of a file checks its content first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "shard/data/store/label_division.h"
#include "shard/format/safetensors.h"
#include "shard/modelet/checkpoint/index.h"

namespace modelet::shard {

class CheckpointWriter {
 public:
  enum class Folder { kShared, kPrivate };

  // `checkpoints` is the run's folder of checkpoints; created if needed.
  CheckpointWriter(const std::filesystem::path& checkpoints, uint64_t step, Folder kind = Folder::kShared);

  // Writes one modelet's arrays. May be called from several threads for different modelets.
  CheckpointEntry write_modelet(const ModeletSpec& spec, std::span<const Tensor> tensors,
                                const Metadata& metadata = {}) const;

  // Writes the state of the text encoder (Dataset::encoder()).
  FileDigest write_encoder(std::span<const std::byte> state) const;

  // Adds a file that exists already, under this name. A hard link where the file system allows it, else a copy.
  void add(const std::filesystem::path& file, const std::string& name) const;
  // Adds the files of the checkpoint in `folder` as a tower, in the same way.
  TowerEntry add_tower(const std::filesystem::path& folder, uint32_t task) const;
  // Writes the division of the labels into towers.
  FileDigest write_division(const LabelDivision& division) const;

  // The path of the checkpoint once it is committed.
  std::filesystem::path folder() const;

  // Makes the checkpoint visible and removes older ones: of those of this step or before, `keep` (>= 1) and
  // the run's best one remain. `index` has the entries of all modelets in any order. Returns the folder of
  // the checkpoint. UsageError if a file is missing or has another size: then some process wrote to a folder
  // that this one does not see. Once the checkpoint is in place, nothing fails: what cannot be removed is a
  // warning. Call it once, in one process, after all have written.
  std::filesystem::path commit(CheckpointIndex index, uint32_t keep) const;

  // Makes this process's part visible, with an index if there is one, and returns its folder. A part of the
  // same step is replaced; parts of other steps stay.
  std::filesystem::path commit_part(const CheckpointIndex* index = nullptr) const;
  // kPrivate: removes what was written. The writer is of no further use.
  void abandon() const;

 private:
  void check_files(const CheckpointIndex& index) const;
  void remove_other_files(const CheckpointIndex& index) const;
  void publish(const std::filesystem::path& target) const;
  void remove_leftovers() const;

  std::filesystem::path parent_, partial_;
  uint64_t step_;
  Sync sync_;
};

// Adds to the index of a checkpoint that is in place what has become known about the run since, and removes
// older checkpoints as commit() does. A reader, or a crash at any moment, sees the old index or the new one.
void amend_checkpoint(const std::filesystem::path& folder, uint64_t best_step, const std::string& extra,
                      uint32_t keep);

}  // namespace modelet::shard
