#include "shard/data/store/text_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/log.h"

namespace modelet::shard {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kDefaultMib = 64 << 10;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

uint64_t limit_bytes() {
  const std::string_view text = variable("MODELET_CACHE_MIB");
  if (text.empty()) return kDefaultMib << 20;
  constexpr uint64_t kMost = uint64_t{1} << 30;
  uint64_t mib = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mib);
  if (error != std::errc{} || end != text.data() + text.size() || mib == 0 || mib > kMost)
    throw UsageError("MODELET_CACHE_MIB is '" + std::string(text) +
                     "': the size of the cache in MiB, from 1 to " + std::to_string(kMost));
  return mib << 20;
}

// The user may have other files in the folder.
bool is_entry(const fs::path& path) {
  constexpr size_t kDigits = 16;
  const std::string digits = path.stem().extension().string();  // with the dot
  return path.extension() == ".mlt" && digits.size() == 1 + kDigits &&
         digits.find_first_not_of("0123456789abcdef", 1) == std::string::npos;
}

}  // namespace

std::optional<fs::path> text_cache_folder() {
  limit_bytes();
  fs::path folder;
  if (const auto own = variable("MODELET_CACHE"); !own.empty()) {
    folder = own;
  } else if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    folder = fs::path(cache) / "modelet";
  } else if (const auto home = variable("HOME"); !home.empty()) {
    folder = fs::path(home) / ".cache" / "modelet";
  } else {
    warn_no_cache("neither MODELET_CACHE nor HOME is set");
    return std::nullopt;
  }
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (!failure && !fs::is_directory(folder, failure))
    failure = std::make_error_code(std::errc::not_a_directory);
  if (!failure) return folder;
  warn_no_cache(folder.string() + ": " + failure.message());
  return std::nullopt;
}

void warn_no_cache(const std::string& why) {
  static std::once_flag warned;
  std::call_once(warned, [&] {
    log_warning(
        "{}: prepared text is not kept, and is prepared again each time; set MODELET_CACHE to a folder that can be "
        "written to",
        why);
  });
}

void note_use_of_cached(const fs::path& entry) {
  ::utimensat(AT_FDCWD, entry.c_str(), nullptr, 0);  // fails for users who may only read
  struct Other {
    std::pair<time_t, long> used;
    fs::path path;
    uint64_t bytes;
  };
  std::vector<Other> others;
  uint64_t all = 0;
  std::error_code failure;
  for (fs::directory_iterator file(entry.parent_path(), failure), end; !failure && file != end;
       file.increment(failure)) {
    struct stat info {};
    if (!is_entry(file->path()) || ::stat(file->path().c_str(), &info) != 0) continue;
    all += static_cast<uint64_t>(info.st_size);
    if (file->path() != entry)
      others.push_back(
          {{info.st_mtim.tv_sec, info.st_mtim.tv_nsec}, file->path(), static_cast<uint64_t>(info.st_size)});
  }
  std::ranges::sort(others, {}, &Other::used);
  const uint64_t limit = limit_bytes();
  for (const Other& other : others) {
    // Somebody may have just made it, and not opened it yet.
    constexpr time_t kRecent = 60;
    if (all <= limit || other.used.first > ::time(nullptr) - kRecent) break;
    // Its name has that of a text, which may be private.
    log_for_owner("removes {}, the least recently used of the cache (MODELET_CACHE_MIB)", other.path.string());
    if (fs::remove(other.path, failure)) all -= other.bytes;
  }
}

}  // namespace modelet::shard
