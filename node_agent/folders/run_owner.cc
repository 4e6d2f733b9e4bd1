#include "node_agent/folders/run_owner.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <random>
#include <system_error>

#include "base/error.h"
#include "base/system/file.h"
#include "base/text/printable.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "submitter";

// A file that another user of this machine put into the folder does not count.
bool counts(const struct stat& info) { return S_ISREG(info.st_mode) && info.st_uid == ::geteuid(); }

// The owner that the folder names; empty: none. Throws if that cannot be found out: the folder must not
// count as nobody's then.
std::string submitter_of(const fs::path& folder) {
  const fs::path path = folder / kFile;
  struct stat info {};
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return "";
    const std::string failure = errno_text(path.string());
    if (::lstat(path.c_str(), &info) == 0 && !counts(info)) return "";
    throw Error(failure);
  }
  std::array<char, 256> name{};
  ssize_t bytes = ::fstat(fd, &info);
  if (bytes == 0 && counts(info)) bytes = ::read(fd, name.data(), name.size());
  const std::string failure = bytes < 0 ? errno_text(path.string()) : "";
  ::close(fd);
  if (bytes < 0) throw Error(failure);
  const std::string text(name.data(), static_cast<size_t>(bytes));
  return text.substr(0, text.find('\n'));
}

// Whether a run may take the folder and everything beneath it. It may if the folder does not exist, is
// empty, holds a run, or holds what is left of an attempt (shard::take_run_folder, claim_run_folder).
bool is_for_a_run(const fs::path& folder) {
  std::error_code failure;
  if (!fs::exists(folder, failure) || fs::exists(folder / "checkpoints", failure)) return true;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string name = entry->path().filename();
    if (name != ".lock" && !name.starts_with(kFile)) return false;
  }
  if (failure) throw Error(folder.string() + ": " + failure.message());
  return true;
}

// True if the folder names `owner`, false if it names nobody. Throws if it names somebody else.
bool is_of(const fs::path& folder, const RunOwner& owner) {
  const std::string submitter = submitter_of(folder);
  if (submitter.empty() || submitter == owner.submitter) return !submitter.empty();
  throw UsageError(fmt::format("{}: holds a run of the key '{}', and this is '{}': choose another folder",
                               folder.string(), printable(submitter), owner.submitter));
}

}  // namespace

void require_own_run(const fs::path& path, const RunOwner& owner) {
  if (owner.submitter.empty() || owner.is_admin) return;
  for (fs::path folder = fs::weakly_canonical(path); folder.has_relative_path();
       folder = folder.parent_path())
    is_of(folder, owner);
}

void claim_run_folder(const fs::path& folder, const RunOwner& owner) {
  const bool claims = !owner.submitter.empty() && !owner.is_admin;
  // This must come before the submitter's name is read: the agent of another rank writes the name first,
  // and then its run's files.
  const bool free = !claims || is_for_a_run(folder);
  require_own_run(folder, owner);
  // Checked again, because somebody else may have claimed the folder meanwhile. This reads the name once.
  if (!claims || is_of(folder, owner)) return;
  if (!free)
    throw UsageError(
        folder.string() +
        ": holds other files, but no run: choose a folder of the run's own, such as one beneath");
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw Error(folder.string() + ": " + failure.message());
  // If two agents claim the folder at once, the second one finds the file of the first.
  std::random_device random;
  const fs::path name = folder / kFile,
                 mine = folder / fmt::format("{}.{:08x}{:08x}", kFile, random(), random());
  AtomicFile file(mine);
  file.write(owner.submitter + "\n");
  file.commit();
  try {
    // If the link fails although nobody is named, there is a file that does not count, or the file system
    // has no hard links.
    if (::link(mine.c_str(), name.c_str()) != 0 && !is_of(folder, owner)) fs::rename(mine, name);
  } catch (...) {
    ::unlink(mine.c_str());
    throw;
  }
  ::unlink(mine.c_str());
}

}  // namespace modelet::agent
