#include "node_agent/folders/roots.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/system/descriptor.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

// If the root is "/", nothing leads out of it, and links to absolute paths may be followed.
bool is_everything(const fs::path& root) { return root == root.root_path(); }

int open_beneath(const fs::path& root, const fs::path& relative, uint64_t flags) {
  const Descriptor folder(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return -1;
  open_how how{};
  how.flags = flags | O_CLOEXEC;
  how.resolve = is_everything(root) ? 0 : RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const fs::path name = relative.empty() ? "." : relative;
  return static_cast<int>(::syscall(SYS_openat2, folder.get(), name.c_str(), &how, sizeof how));
}

// `path` relative to the root; nothing if it is not beneath the root.
std::optional<fs::path> beneath(const fs::path& root, const fs::path& path) {
  const fs::path relative = path.lexically_normal().lexically_relative(root.lexically_normal());
  if (relative.empty() || *relative.begin() == "..") return std::nullopt;
  return relative == "." ? fs::path() : relative;
}

bool is_regular_beneath(const fs::path& root, const fs::path& path) {
  const auto relative = beneath(root, path);
  if (!relative) return false;
  const Descriptor file(open_beneath(root, *relative, O_RDONLY | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  return file.get() >= 0 && ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode);
}

// Checks the folders of the path that exist. A folder that does not exist yet cannot lead elsewhere.
bool is_folder_beneath(const fs::path& root, const fs::path& path) {
  const auto relative = beneath(root, path);
  if (!relative) return false;
  for (fs::path there = *relative;; there = there.parent_path()) {
    const Descriptor folder(open_beneath(root, there, O_PATH | O_DIRECTORY));
    if (folder.get() >= 0) return true;
    if (errno != ENOENT || there.empty()) return false;
  }
}

[[noreturn]] void refuse(const std::string& what, const fs::path& path, const char* must,
                         const char* option) {
  throw UsageError(
      fmt::format("{} '{}': must be {} beneath a folder that this agent's owner lets runs use ({})", what,
                  path.string(), must, option));
}

void check_data(const Roots& roots, const char* key, const fs::path& path) {
  for (const fs::path& root : roots.data)
    if (is_regular_beneath(root, path)) return;
  refuse(key, path, "a regular file",
         "--data-root of modelet-agent; or give the scheduler a --store, which sends data");
}

bool is_beneath_any(const std::vector<fs::path>& roots, const fs::path& path) {
  for (const fs::path& root : roots)
    if (is_folder_beneath(root, path)) return true;
  return false;
}

// Compares what the paths lead to: a link may lead into the folder by another name.
bool is_kept_out(const Roots& roots, const fs::path& path) {
  std::error_code failure;
  const fs::path real = fs::weakly_canonical(path, failure);
  return failure || std::ranges::any_of(roots.kept_out, [&](const fs::path& folder) {
           return beneath(folder, path) || beneath(fs::weakly_canonical(folder), real);
         });
}

}  // namespace

void check(const Roots& roots) {
  for (const auto* list : {&roots.data, &roots.out})
    for (const fs::path& root : *list)
      if (!fs::is_directory(root))
        throw UsageError(root.string() + ": is not a folder (--data-root, --out-root)");
}

void check_folders(const Roots& roots, const TrainJob& job) {
  constexpr auto kOut = "--work-dir and --out-root of modelet-agent";
  if (!is_beneath_any(roots.out, job.out) || (!job.private_folder && is_kept_out(roots, job.out)))
    refuse("the run's folder", job.out, "a folder", kOut);
  // A run owns its folder and everything beneath it (run_owner.h). A root belongs to everybody.
  for (const fs::path& root : roots.out) {
    const auto relative = beneath(root, job.out);
    std::error_code failure;
    if ((relative && relative->empty()) || fs::equivalent(root, job.out, failure))
      refuse("the run's folder", job.out, "a folder of its own", kOut);
  }
  if (!job.resume.empty() && !is_beneath_any(roots.out, job.resume))
    refuse("the checkpoint to resume", job.resume, "a folder", kOut);
}

void check(const Roots& roots, const TrainJob& job) {
  if (job.train_file.empty()) check_data(roots, "data.train", job.experiment.data.train);
  if (job.test_file.empty()) check_data(roots, "data.test", job.experiment.data.test);
  check_folders(roots, job);
}

}  // namespace modelet::agent
