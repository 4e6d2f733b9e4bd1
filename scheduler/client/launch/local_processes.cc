#include "scheduler/client/launch/local_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <spdlog/fmt/fmt.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "base/text/printable.h"

namespace modelet::cli {
namespace {

constexpr double kTermSeconds = 2;   // between SIGTERM and SIGKILL; whoever asked for the end waits so long
constexpr size_t kTailBytes = 2000;  // of a log, in an error

// Settings for posix_spawn: no input, output to the log, a process group of its own, no blocked signals.
class SpawnSettings {
 public:
  explicit SpawnSettings(const std::filesystem::path& log) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
    posix_spawnattr_init(&attributes_);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&actions_);
  }

  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

LocalProcesses::~LocalProcesses() {
  std::vector<std::string> names;
  for (const Process& process : processes_) names.push_back(process.name);
  stop(names);
}

LocalProcesses::Process& LocalProcesses::process(const std::string& name) {
  return *std::ranges::find(processes_, name, &Process::name);
}

void LocalProcesses::start(const Program& program) {
  if (std::ranges::find(processes_, program.name, &Process::name) == processes_.end())
    processes_.push_back(
        {.name = program.name, .log = logs_ / (program.name + ".log"), .end = "was never started"});
  Process& started = process(program.name);
  std::vector<std::string> words{program.path.string()};
  words.insert(words.end(), program.arguments.begin(), program.arguments.end());
  words.insert(words.end(), {"--exit-with-parent", std::to_string(::getpid())});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const SpawnSettings settings(started.log);
  const int failure = ::posix_spawn(&started.pid, program.path.c_str(), settings.actions(),
                                    settings.attributes(), argv.data(), environ);
  if (failure != 0) {
    errno = failure;
    throw Error(errno_text(program.path.string()) +
                ": `modelet` needs it in the folder in which it lies itself");
  }
  started.end.reset();
}

std::optional<std::string> LocalProcesses::poll(const std::string& name) {
  Process& polled = process(name);
  int status = 0;
  if (!polled.end && ::waitpid(polled.pid, &status, WNOHANG) != 0)
    polled.end = WIFSIGNALED(status) ? fmt::format("was killed by signal {}", WTERMSIG(status))
                                     : fmt::format("ended with code {}", WEXITSTATUS(status));
  return polled.end;
}

void LocalProcesses::stop(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (!poll(name)) ::kill(process(name).pid, SIGTERM);
  const Stopwatch watch;
  for (const std::string& name : names) {
    while (!poll(name) && watch.seconds() < kTermSeconds)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    Process& stopped = process(name);
    if (stopped.end) continue;
    ::kill(stopped.pid, SIGKILL);
    ::waitpid(stopped.pid, nullptr, 0);
    stopped.end = "was killed";
  }
}

std::string LocalProcesses::log(const std::string& name) const {
  const ReadFile file(std::ranges::find(processes_, name, &Process::name)->log);
  std::string tail(std::min<uint64_t>(file.bytes(), kTailBytes), '\0');
  file.read(file.bytes() - tail.size(), std::as_writable_bytes(std::span(tail)));
  std::istringstream lines(tail);
  std::string shown = tail.size() < file.bytes() ? "..." : "";
  for (std::string line; std::getline(lines, line);) shown += printable(line, kTailBytes) + '\n';
  return shown;
}

}  // namespace modelet::cli
