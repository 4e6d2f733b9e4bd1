#include "base/system/process.h"

#include <features.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/error.h"
#include "base/system/file.h"

namespace modelet {
namespace {

// A signal handler can reach only globals.
std::function<void()> stop_function, hung_up_function;
std::atomic<bool> stop_installed{false};
constexpr std::array<int, 3> kStopSignals = {SIGTERM, SIGINT, SIGHUP};
std::array<struct sigaction, kStopSignals.size()> old_actions;
struct sigaction old_pipe;

void handle_signal(int) { stop_function(); }
void handle_hangup(int) { hung_up_function(); }

}  // namespace

StopSignals::StopSignals(std::function<void()> stop, Again again, std::function<void()> hung_up) {
  MODELET_CHECK(!stop_installed.exchange(true), "one StopSignals at a time");
  stop_function = std::move(stop);
  hung_up_function = std::move(hung_up);
  struct sigaction action {};
  action.sa_handler = handle_signal;
  if (again == Again::kEndsProcess) action.sa_flags = SA_RESETHAND;
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], nullptr, &old_actions[i]);
    if (kStopSignals[i] == SIGHUP && old_actions[i].sa_handler == SIG_IGN) continue;
    ::sigaction(kStopSignals[i], &action, nullptr);
  }
  if (hung_up_function) {
    action.sa_handler = handle_hangup;
    action.sa_flags = 0;
    ::sigaction(SIGHUP, &action, nullptr);
  }
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &old_pipe);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) ::sigaction(kStopSignals[i], &old_actions[i], nullptr);
  ::sigaction(SIGPIPE, &old_pipe, nullptr);
  stop_function = nullptr;
  stop_installed = false;
}

void write_from_signal(const char* line) {
  const int before = errno;
  const ssize_t written = ::write(STDERR_FILENO, line, std::strlen(line));
  static_cast<void>(written);  // nobody is left to tell
  errno = before;
}

void end_from_signal(const char* line) {
  write_from_signal(line);
  ::_exit(static_cast<int>(ExitCode::kInterrupted));
}

uint64_t peak_memory_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

void give_back_large_pieces() {
#ifdef __GLIBC__
  constexpr int kLarge = 1'000'000;  // bytes
  ::mallopt(M_MMAP_THRESHOLD, kLarge);
  ::mallopt(M_TRIM_THRESHOLD, kLarge);
#endif
}

void give_back_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

std::string out_of_memory_text() {
  return "out of memory: this process has used " + std::to_string(peak_memory_bytes() >> 20) +
         " MiB, and the machine, or a limit of this process, gives no more; end other programs, raise the limit "
         "(ulimit -v, memory of the container), or ask for less: more nodes, a smaller model.hidden or train.batch, "
         "model.precision = \"bf16\" ('modelet plan' tells what a run needs)";
}

void exit_with_parent(int parent) {
  if (parent == 0) return;
  if (::prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) throw Error(errno_text("prctl(PR_SET_PDEATHSIG)"));
  if (::getppid() != parent)
    throw Error("the parent process " + std::to_string(parent) + " has ended already");
}

uint64_t descriptor_limit() {
  constexpr rlim_t kMost = 65'536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMost;
  if (const rlim_t more = std::min(limit.rlim_max, kMost); limit.rlim_cur < more) {
    limit.rlim_cur = more;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit.rlim_cur;
}

void require_descriptors(uint64_t more, const std::string& what) {
  std::error_code unknown;  // without /proc: as if none were open
  const auto open = std::distance(std::filesystem::directory_iterator("/proc/self/fd", unknown), {});
  const uint64_t needed = static_cast<uint64_t>(open) + more;
  if (const uint64_t limit = descriptor_limit(); limit < needed)
    throw Error(what + " needs " + std::to_string(needed) + " open files, and this process may have " +
                std::to_string(limit) + ": raise the limit (ulimit -Hn " + std::to_string(needed) +
                ", LimitNOFILE of a systemd unit, --ulimit nofile of a container)");
}

void require_threads(size_t more) {
  std::mutex all_started;
  std::vector<std::jthread> threads;
  const std::lock_guard lock(all_started);  // released first: then they end
  for (size_t i = 0; i < more; ++i)
    threads.emplace_back([&all_started] { const std::lock_guard wait(all_started); });
}

void require_room(const std::filesystem::path& folder, uint64_t bytes) {
  constexpr size_t kProbe = 1 << 16;
  std::filesystem::path there = std::filesystem::absolute(folder);
  std::error_code ignored;
  while (!std::filesystem::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
  if (!std::filesystem::is_directory(there, ignored)) throw Error(there.string() + ": is not a folder");
  try {
    AtomicFile(there / "probe").write(std::string(kProbe, '\0'));
  } catch (const Error& error) {
    throw Error(folder.string() + ": no files can be made there: " + error.what());
  }
  const auto space = std::filesystem::space(there, ignored);
  if (!ignored && space.available < bytes)
    throw Error(there.string() + ": " + std::to_string(space.available >> 20) + " MiB are free, and " +
                std::to_string((bytes >> 20) + 1) +
                " are needed: remove files from that disk, or choose a folder on another one");
}

void limit_address_space(uint64_t bytes) {
  uint64_t pages = 0;
  rlimit limit{};
  if (!(std::ifstream("/proc/self/statm") >> pages) || ::getrlimit(RLIMIT_AS, &limit) != 0) return;
  if (pages * static_cast<uint64_t>(::getpagesize()) >= bytes) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, bytes);
  ::setrlimit(RLIMIT_AS, &limit);
}

void limit_own_memory(uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, bytes);
  ::setrlimit(RLIMIT_DATA, &limit);
}

}  // namespace modelet
