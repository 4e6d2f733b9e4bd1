#include "scheduler/client/local_pool.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <spdlog/fmt/fmt.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"
#include "comm/security/keys.h"
#include "node_agent/machine/capacity.h"
#include "scheduler/client/pool_client.h"

namespace modelet::cli {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr double kLongestPause =
    60;  // seconds before a process is started again; one that lives longer is well
constexpr double kTermSeconds = 2;   // between SIGTERM and SIGKILL; whoever asked for the end waits so long
constexpr size_t kTailBytes = 2000;  // of a log, in an error

std::filesystem::path own_folder() { return std::filesystem::read_symlink("/proc/self/exe").parent_path(); }

// Makes an empty folder for this user alone; removes what a killed pool has left there.
void make_closed_folder(const std::filesystem::path& folder) {
  std::error_code failure;
  std::filesystem::remove_all(folder, failure);
  if (!failure) std::filesystem::create_directories(folder, failure);
  if (!failure) std::filesystem::permissions(folder, std::filesystem::perms::owner_all, failure);
  if (failure) throw Error(folder.string() + ": " + failure.message() + " (making the pool's folder)");
}

// The address of the sockets among agents. They are files in the folder, which cost less than an encrypted
// connection (docs/pool.md, Keys), unless their paths would be longer than the path of a socket may be.
std::string data_address(const std::filesystem::path& folder) {
  constexpr size_t kName = 17;  // "/" and what comm::listen_at() makes of "*"
  return folder.native().size() + kName < sizeof sockaddr_un::sun_path ? "ipc://" + folder.string()
                                                                       : "127.0.0.1";
}

std::string tail_of(const std::filesystem::path& log) {
  const std::string text = read_text_file(log);
  return text.size() > kTailBytes ? "..." + text.substr(text.size() - kTailBytes) : text;
}

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

LocalPool::LocalPool(const LocalPoolOptions& options)
    : files_(options.files.empty() ? folder_ / "files" : options.files) {
  try {
    start(options);
  } catch (...) {
    stop_all();
    throw;
  }
}

LocalPool::~LocalPool() { stop_all(); }

void LocalPool::start(const LocalPoolOptions& options) {
  const std::filesystem::path programs = options.programs.empty() ? own_folder() : options.programs;
  make_closed_folder(files_);
  const std::filesystem::path endpoint_file = folder_ / "endpoint", allow_list = folder_ / "allowed";
  const comm::KeyPair user = make_key("user"), scheduler = make_key("scheduler");
  std::string allowed = fmt::format("admin {} user\n", user.public_key);
  std::vector<std::string> names;
  const size_t digits = std::to_string(options.nodes).size();
  for (uint32_t i = 1; i <= options.nodes; ++i) {
    names.push_back(fmt::format("node-{:0{}}", i, digits));
    allowed += fmt::format("agent {} {}\n", make_key(names.back()).public_key, names.back());
  }
  AtomicFile list(allow_list);
  list.write(allowed);
  list.commit();
  add("scheduler", programs / "modelet-scheduler",
      {"--listen", "tcp://127.0.0.1:*", "--endpoint-file", endpoint_file.string(), "--key",
       key_file("scheduler").string(), "--allow-list", allow_list.string(), "--state",
       (files_ / "scheduler").string()});
  scheduler_ = {wait_for_scheduler(endpoint_file, options), comm::ClientKeys{user, scheduler.public_key}};
  processes_[0].arguments[1] = scheduler_.endpoint;  // a restarted scheduler must be found there

  // The speed is measured once. Agents that measured at the same time on shared cores would get different
  // speeds by chance.
  const uint32_t threads =
      options.threads > 0 ? options.threads : std::max(1u, agent::usable_cores() / options.nodes);
  const agent::Speed speed = agent::measure_speed(threads, options.check);
  const uint64_t bytes =
      agent::known_memory("start a scheduler, and agents with --memory-mib (docs/pool.md)");
  const uint64_t memory_mib = std::max<uint64_t>(1, (bytes >> 20) / options.nodes);
  // The pool's only user may read and write everything that the agents may. When an agent gets SIGTERM, the
  // pool ends or has been killed: no scheduler could release the agent, and it must not train on meanwhile.
  for (const std::string& name : names)
    add(name, programs / "modelet-agent", {"--scheduler",     scheduler_.endpoint,
                                           "--key",           key_file(name).string(),
                                           "--scheduler-key", scheduler.public_key,
                                           "--data-address",  data_address(folder_),
                                           "--name",          name,
                                           "--cores",         std::to_string(threads),
                                           "--memory-mib",    std::to_string(memory_mib),
                                           "--gflops",        std::to_string(speed.gflops),
                                           "--bf16-gflops",   std::to_string(speed.bf16_gflops),
                                           "--memory-gbps",   std::to_string(speed.memory_gbps),
                                           "--work-dir",      (files_ / name).string(),
                                           "--local-store",   store().string(),
                                           "--data-root",     "/",
                                           "--out-root",      "/",
                                           "--leave-seconds", "0.1",
                                           "--dedicated"});
  wait_for_agents(options);
  restarts_left_ = options.most_restarts;
}

void LocalPool::add(const std::string& name, const std::filesystem::path& program,
                    std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--exit-with-parent", std::to_string(::getpid())});
  Process process{
      .name = name, .log = folder_ / (name + ".log"), .program = program, .arguments = std::move(arguments)};
  spawn(process);
  processes_.push_back(std::move(process));
}

void LocalPool::spawn(Process& process) {
  std::vector<std::string> words{process.program.string()};
  words.insert(words.end(), process.arguments.begin(), process.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const SpawnSettings settings(process.log);
  const int failure = ::posix_spawn(&process.pid, process.program.c_str(), settings.actions(),
                                    settings.attributes(), argv.data(), environ);
  if (failure != 0) {
    errno = failure;
    throw Error(errno_text(process.program.string()) +
                ": `modelet` needs it in the folder in which it lies itself");
  }
  process.ended = false;
  process.started = clock_.now();
}

double pause_before_restart(uint32_t quick_ends) {
  return quick_ends < 2 ? 0 : std::min(std::exp2(quick_ends - 2), kLongestPause);
}

void LocalPool::plan_restart(Process& process, const std::string& how) {
  if (restarts_left_ == 0)
    throw Error(fmt::format("the pool's process '{}' {}:\n{}", process.name, how, tail_of(process.log)));
  --restarts_left_;
  const double now = clock_.now();
  process.quick_ends = now - process.started < kLongestPause ? process.quick_ends + 1 : 0;
  const double pause = pause_before_restart(process.quick_ends);
  process.restart_at = now + pause;
  log_warning("the pool's process '{}' {}: starts it again{}", process.name, how,
              pause > 0 ? fmt::format(" in {} s", pause) : "");
}

std::filesystem::path LocalPool::key_file(const std::string& name) const { return folder_ / (name + ".key"); }

comm::KeyPair LocalPool::make_key(const std::string& name) {
  const comm::KeyPair pair = comm::make_key_pair();
  comm::write_key_file(key_file(name), pair, false);
  return pair;
}

std::string LocalPool::wait_for_scheduler(const std::filesystem::path& endpoint_file,
                                          const LocalPoolOptions& options) {
  for (const Stopwatch watch; !std::filesystem::exists(endpoint_file); std::this_thread::sleep_for(kPoll)) {
    check();
    if (options.check) options.check();
    if (watch.seconds() > options.start_seconds)
      throw Error(fmt::format("the scheduler did not start within {:.0f} s:\n{}", options.start_seconds,
                              tail_of(processes_[0].log)));
  }
  std::string endpoint = read_text_file(endpoint_file);
  while (!endpoint.empty() && endpoint.back() == '\n') endpoint.pop_back();
  return endpoint;
}

void LocalPool::wait_for_agents(const LocalPoolOptions& options) {
  const uint32_t count = options.nodes;
  const double seconds = options.start_seconds;
  PoolClient client(scheduler_, [&] {
    check();
    if (options.check) options.check();
  });
  for (const Stopwatch watch;; std::this_thread::sleep_for(kPoll)) {
    const size_t registered = client.nodes().nodes.size();
    if (registered >= count) return;
    check();
    if (options.check) options.check();
    if (watch.seconds() <= seconds) continue;
    std::string text = fmt::format("{} of {} agents registered within {:.0f} s", registered, count, seconds);
    for (const Process& process : processes_)
      text += fmt::format("\n--- {}:\n{}", process.name, tail_of(process.log));
    throw Error(text);
  }
}

void LocalPool::check() {
  for (Process& process : processes_) {
    int status = 0;
    if (!process.ended && ::waitpid(process.pid, &status, WNOHANG) == process.pid) {
      process.ended = true;
      plan_restart(process, WIFSIGNALED(status) ? fmt::format("was killed by signal {}", WTERMSIG(status))
                                                : fmt::format("ended with code {}", WEXITSTATUS(status)));
    }
    if (process.ended && clock_.now() >= process.restart_at) spawn(process);
  }
}

std::filesystem::path LocalPool::keep_files(const std::filesystem::path& folder) {
  kept_ = folder;
  // An empty folder can be replaced when the pool ends, and no other process takes the name until then.
  std::error_code failure;  // stop_all() will say what is wrong
  for (int number = 2;
       !std::filesystem::create_directory(kept_, failure) && std::filesystem::exists(kept_, failure);
       ++number)
    kept_ = fmt::format("{}-{}", folder.string(), number);
  return kept_ / "scheduler";
}

// Stops the agents first, so that they can still tell the scheduler.
void LocalPool::stop_all() {
  const auto wait_for = [](Process& process, const Stopwatch& watch) {
    while (!process.ended && watch.seconds() < kTermSeconds) {
      process.ended = ::waitpid(process.pid, nullptr, WNOHANG) != 0;
      if (!process.ended) std::this_thread::sleep_for(kPoll);
    }
    if (process.ended) return;
    ::kill(process.pid, SIGKILL);
    ::waitpid(process.pid, nullptr, 0);
    process.ended = true;
  };
  const auto stop = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      if (!processes_[i].ended) ::kill(processes_[i].pid, SIGTERM);
    const Stopwatch watch;
    for (size_t i = begin; i < end; ++i) wait_for(processes_[i], watch);
  };
  stop(std::min<size_t>(1, processes_.size()), processes_.size());
  stop(0, std::min<size_t>(1, processes_.size()));
  std::error_code failure;
  if (kept_.empty())
    std::filesystem::remove_all(files_, failure);  // if this fails, files stay behind, which does no harm
  else
    std::filesystem::rename(files_, kept_, failure);
  if (failure && !kept_.empty())
    log_error("the files of the pool cannot be moved to {} and stay in {}: {}", kept_.string(),
              files_.string(), failure.message());
}

}  // namespace modelet::cli
