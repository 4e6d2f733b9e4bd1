#include "node_agent/machine/turn.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/system/clock.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

// lstat() does not follow a link that somebody else has put there.
bool is_own(const fs::path& folder) {
  constexpr mode_t kOthers = 0077;  // permission bits of group and others
  struct stat info {};
  return ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & kOthers) == 0;
}

}  // namespace

std::optional<fs::path> runtime_folder() {
  if (const char* given = std::getenv("XDG_RUNTIME_DIR"); given != nullptr && is_own(given)) return given;
  std::error_code failure;
  const fs::path folder = fs::temp_directory_path(failure) / ("modelet-" + std::to_string(::geteuid()));
  ::mkdir(folder.c_str(), 0700);
  if (failure || !is_own(folder)) return std::nullopt;
  return folder;
}

std::optional<FileLock> wait_for_turn(const fs::path& folder, const char* name, double seconds,
                                      const std::function<void()>& check) {
  constexpr auto kLook = std::chrono::milliseconds(10);
  for (const Stopwatch watch;; std::this_thread::sleep_for(kLook)) {
    try {
      if (auto taken = FileLock::take(folder / name)) return taken;
    } catch (const WriteError&) {
      return std::nullopt;
    }
    if (watch.seconds() >= seconds) return std::nullopt;
    if (check) check();
  }
}

}  // namespace modelet::agent
