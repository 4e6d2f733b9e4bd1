// The folders of checkpoints: their names, and which are there. A folder whose name begins with a dot is
// hidden: it is being written, or replaced, or was left by a crash. Functions without state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace modelet::shard {

std::string step_name(uint64_t step);
// A checkpoint of the same step that is being replaced: complete, and found when a crash left no other.
std::string replaced_name(uint64_t step);
std::string partial_name(uint64_t step);

enum class FolderKind { kComplete, kReplaced, kPartial };
struct StepFolder {
  uint64_t step;
  FolderKind kind;
  std::filesystem::path path;
};

// Nothing if it is not named as one.
std::optional<StepFolder> parse_step_folder(const std::filesystem::path& path);
std::vector<StepFolder> step_folders(const std::filesystem::path& parent);
// Complete ones before `step`, newest first.
std::vector<StepFolder> complete_before(const std::filesystem::path& parent, uint64_t step);

// Whether the folder has an index.
bool is_checkpoint(const std::filesystem::path& folder);
// The newest complete checkpoint in a checkpoints/ folder; a replaced one counts only if its successor is
// missing.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& parent);

// Failures of these functions are Errors.
void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to);
void remove_tree(const std::filesystem::path& path);
// Writes a folder to disk. Only then does a rename, or a new file in it, survive a power cut.
void sync_folder(const std::filesystem::path& folder);
// The same, and the files of a checkpoint too.
void sync_checkpoint(const std::filesystem::path& folder);
// Removes the checkpoints of `step` or before, except the newest `keep` (>= 1) and that of `best_step`.
void remove_old_checkpoints(const std::filesystem::path& parent, uint64_t step, uint32_t keep,
                            uint64_t best_step);

}  // namespace modelet::shard
