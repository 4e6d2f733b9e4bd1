// The index of a checkpoint: what its index.json says (docs/checkpoint_format.md). Plain values, and their
// text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/experiment.h"
#include "base/experiment/partition.h"
#include "shard/format/safetensors.h"

namespace modelet::shard {

// Names of files in a checkpoint's folder.
inline constexpr const char* kIndexName = "index.json";
inline constexpr const char* kEncoderName = "encoder.safetensors";
std::string modelet_file(const ModeletSpec& spec);

// One modelet's file in a checkpoint.
struct CheckpointEntry {
  ModeletSpec spec;
  std::string file;  // name inside the checkpoint's folder
  FileDigest digest;
};

// The entry of a modelet whose file another process wrote: only the digest has to travel.
CheckpointEntry checkpoint_entry(const ModeletSpec& spec, const FileDigest& digest);

// A tower (base/experiment/towers.h): a checkpoint in a folder of its own, whose shape has all_labels.
struct TowerEntry {
  std::string folder;  // name inside the checkpoint's folder
  FileDigest index;    // of its index.json
};
std::string tower_folder(uint32_t task);

// The contents of index.json.
struct CheckpointIndex {
  std::string modelet_version;  // of the program that wrote it, for people
  uint64_t step = 0;            // steps completed
  uint64_t best_step = 0;       // of the run's best checkpoint until now; `step` if it is this one
  Experiment experiment;
  DataShape shape;
  std::vector<uint32_t> removed_labels;  // ascending: they keep their neurons, and are no answers
  std::vector<CheckpointEntry> modelets;  // in the order of ids; none if there are towers
  std::vector<TowerEntry> towers;         // of each task; empty: one network
  std::optional<FileDigest> division;     // with towers: of the labels (shard/data/store/label_division.h)
  std::optional<FileDigest> encoder;      // of the text's encoder; shape.encoder is its checksum
  std::string extra = "{}";               // JSON object, nested at most 12 deep: the trainer's own state
};

// Throws FormatError, which begins with `origin`, unless the modelets cover every layer exactly, or there is a
// tower for each task.
void check_cover(const CheckpointIndex& index, const std::string& origin);

// Identifies the model by experiment, shape, and the checksums of all weights.
uint64_t fingerprint_of(CheckpointIndex index);

// The text of index.json, and back. parse_checkpoint_index() throws FormatError if the version or a size is
// wrong, if check_cover() throws, or if a name leaves the folder. `folder` names it
// in messages.
std::string format_checkpoint_index(const CheckpointIndex& index);
CheckpointIndex parse_checkpoint_index(std::string_view json, const std::filesystem::path& folder);

}  // namespace modelet::shard
