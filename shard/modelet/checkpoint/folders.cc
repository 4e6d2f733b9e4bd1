#include "shard/modelet/checkpoint/folders.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "shard/modelet/checkpoint/index.h"

namespace modelet::shard {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kReplacedSuffix = ".replaced";
constexpr std::string_view kPartialSuffix = ".partial";

void sync(const fs::path& path, int kind) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | kind);
  if (fd < 0) throw Error(errno_text(path.string()));
  const bool failed = ::fsync(fd) != 0;
  const std::string text = failed ? errno_text(path.string()) : "";
  ::close(fd);
  if (failed) throw Error(text + " (fsync)");
}

}  // namespace

std::string step_name(uint64_t step) { return fmt::format("{}{:010}", kStepPrefix, step); }
std::string replaced_name(uint64_t step) { return fmt::format(".{}{}", step_name(step), kReplacedSuffix); }
std::string partial_name(uint64_t step) { return fmt::format(".{}{}", step_name(step), kPartialSuffix); }

std::optional<StepFolder> parse_step_folder(const fs::path& path) {
  std::string name = path.filename().string();
  FolderKind kind = FolderKind::kComplete;
  if (name.starts_with('.')) {
    kind = name.ends_with(kReplacedSuffix) ? FolderKind::kReplaced : FolderKind::kPartial;
    const std::string_view suffix = kind == FolderKind::kReplaced ? kReplacedSuffix : kPartialSuffix;
    if (!name.ends_with(suffix)) return std::nullopt;
    name = name.substr(1, name.size() - 1 - suffix.size());
  }
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  uint64_t step = 0;
  const auto [stop, failure] = std::from_chars(name.data() + kStepPrefix.size(), end, step);
  if (failure != std::errc() || stop != end) return std::nullopt;
  return StepFolder{step, kind, path};
}

std::vector<StepFolder> step_folders(const fs::path& parent) {
  std::vector<StepFolder> found;
  std::error_code failure;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, failure))
    if (auto folder = parse_step_folder(entry.path())) found.push_back(std::move(*folder));
  return found;
}

std::vector<StepFolder> complete_before(const fs::path& parent, uint64_t step) {
  std::vector<StepFolder> folders = step_folders(parent);
  std::erase_if(folders,
                [&](const StepFolder& f) { return f.kind != FolderKind::kComplete || f.step >= step; });
  std::ranges::sort(folders, std::greater{}, &StepFolder::step);
  return folders;
}

bool is_checkpoint(const fs::path& folder) {
  std::error_code failure;
  return fs::is_regular_file(folder / kIndexName, failure);
}

std::optional<fs::path> newest_checkpoint(const fs::path& parent) {
  std::vector<StepFolder> folders = step_folders(parent);
  std::erase_if(folders,
                [](const StepFolder& f) { return f.kind == FolderKind::kPartial || !is_checkpoint(f.path); });
  const auto newest = std::ranges::max_element(
      folders, {}, [](const StepFolder& f) { return std::pair(f.step, f.kind == FolderKind::kComplete); });
  if (newest == folders.end()) return std::nullopt;
  return newest->path;
}

void rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code failure;
  fs::rename(from, to, failure);
  if (failure) throw Error(to.string() + ": " + failure.message() + " (renaming a checkpoint)");
}

void remove_tree(const fs::path& path) {
  std::error_code failure;
  fs::remove_all(path, failure);
  if (failure) throw Error(path.string() + ": " + failure.message() + " (removing an old checkpoint)");
}

void sync_folder(const fs::path& folder) { sync(folder, O_DIRECTORY); }

void sync_checkpoint(const fs::path& folder) {
  for (const fs::directory_entry& file : fs::directory_iterator(folder)) sync(file.path(), 0);
  sync_folder(folder);
}

void remove_old_checkpoints(const fs::path& parent, uint64_t step, uint32_t keep, uint64_t best_step) {
  const std::vector<StepFolder> folders = complete_before(parent, step + 1);
  for (size_t i = keep; i < folders.size(); ++i) {
    if (folders[i].step == best_step) continue;
    // Hides it first: a half-removed folder must not look like a checkpoint.
    const fs::path hidden = parent / partial_name(folders[i].step);
    rename_folder(folders[i].path, hidden);
    remove_tree(hidden);
  }
}

}  // namespace modelet::shard
