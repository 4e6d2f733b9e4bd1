#include "node_agent/agent/job/data_roots.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/system/descriptor.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

// If the root is "/", nothing leads out of it, and links to absolute paths may be followed.
bool is_everything(const fs::path& root) { return root == root.root_path(); }

Descriptor open_beneath(const fs::path& root, const fs::path& relative) {
  const Descriptor folder(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return Descriptor(-1);
  open_how how{};
  how.flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  how.resolve = is_everything(root) ? 0 : RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  return Descriptor(
      static_cast<int>(::syscall(SYS_openat2, folder.get(), relative.c_str(), &how, sizeof how)));
}

bool is_regular_beneath(const fs::path& root, const fs::path& path) {
  const fs::path relative = path.lexically_normal().lexically_relative(root.lexically_normal());
  if (relative.empty() || *relative.begin() == "..") return false;
  const Descriptor file = open_beneath(root, relative);
  struct stat info {};
  return file.get() >= 0 && ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

DataRoots::DataRoots(std::vector<fs::path> folders) : folders_(std::move(folders)) {
  for (const fs::path& folder : folders_) {
    if (!fs::is_directory(folder)) throw UsageError(folder.string() + ": is not a folder (--data-root)");
    if (open_beneath(folder, ".").get() < 0 && (errno == ENOSYS || errno == EPERM))
      throw UsageError(
          errno_text("openat2") +
          ": agents open the data of runs beneath a --data-root with this system call (Linux 5.6), and "
          "here it is forbidden. In a systemd unit leave out RestrictSUIDSGID=yes, in a container allow "
          "openat2 in the seccomp profile; or leave out --data-root, and the scheduler's --store sends the data");
  }
}

void DataRoots::check_file(const char* key, const fs::path& path) const {
  if (std::ranges::any_of(folders_, [&](const fs::path& root) { return is_regular_beneath(root, path); }))
    return;
  throw UsageError(fmt::format(
      "{} '{}': must be a regular file beneath a folder that this agent's owner lets runs read (--data-root of "
      "modelet-agent; or give the scheduler a --store, which sends data)",
      key, path.string()));
}

void DataRoots::check(const TrainJob& job) const {
  if (job.train_file.empty() && job.private_file.empty()) check_file("data.train", job.experiment.data.train);
  if (job.test_file.empty() && !job.tower) check_file("data.test", job.experiment.data.test);
}

}  // namespace modelet::agent
