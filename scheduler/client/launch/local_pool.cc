#include "scheduler/client/launch/local_pool.h"

#include <spdlog/fmt/fmt.h>
#include <sys/un.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"
#include "node_agent/machine/capacity.h"
#include "scheduler/client/launch/enrolment.h"
#include "scheduler/client/pool_client.h"

namespace modelet::cli {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr double kLongestPause =
    60;  // seconds before a process is started again; one that lives longer is well

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

// All the data is that of this pool's user, who may learn from it in any way.
void write_preferences_of_owners(const std::filesystem::path& file) {
  std::ofstream(file) << "[private]\nleast_owners = 2\nrows = true\n";
}

std::string last_line(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text.substr(text.rfind('\n') + 1));
}

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
  const auto key_file = [&](const std::string& name) { return folder_ / (name + ".key"); };
  const comm::KeyPair scheduler = comm::make_key_pair();
  comm::write_key_file(key_file("scheduler"), scheduler, false);
  const comm::KeyPair user = enrol(key_file("user"), false, allow_list, "admin", "user");
  std::vector<std::string> names;
  const size_t digits = std::to_string(options.nodes).size();
  for (uint32_t i = 1; i <= options.nodes; ++i) {
    names.push_back(fmt::format("node-{:0{}}", i, digits));
    enrol(key_file(names.back()), false, allow_list, "agent", names.back());
  }
  add({"scheduler",
       programs / "modelet-scheduler",
       {"--listen", "tcp://127.0.0.1:*", "--endpoint-file", endpoint_file.string(), "--key",
        key_file("scheduler").string(), "--allow-list", allow_list.string(), "--state",
        (files_ / "scheduler").string()}});
  scheduler_ = {wait_for_scheduler(endpoint_file, options), comm::ClientKeys{user, scheduler.public_key}};
  members_[0].program.arguments[1] = scheduler_.endpoint;  // a restarted scheduler must be found there

  // The speed is measured once. Agents that measured at the same time on shared cores would get different
  // speeds by chance.
  const uint32_t threads =
      options.threads > 0 ? options.threads : std::max(1u, agent::usable_cores() / options.nodes);
  const agent::Speed speed = agent::measure_speed(threads, options.check);
  const uint64_t bytes =
      agent::known_memory("start a scheduler, and agents with --memory-mib (docs/pool.md)");
  const uint64_t memory_mib = std::max<uint64_t>(1, (bytes >> 20) / options.nodes);
  const std::filesystem::path preferences = folder_ / "preferences.toml";
  if (!options.owners.empty()) write_preferences_of_owners(preferences);  // once: agents that have started read it
  // The pool's only user may read everything that the agents may. When an agent gets SIGTERM, the
  // pool ends or has been killed: no scheduler could release the agent, and it must not train on meanwhile.
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    Program agent{name, programs / "modelet-agent", {"--scheduler",     scheduler_.endpoint,
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
                                            "--leave-seconds", "0.1",
                                            "--dedicated"}};
    if (!options.owners.empty())
      for (const std::string& each : {std::string("--private"), std::string(kOwners) + '=' + options.owners.at(i).string(),
                                      std::string("--preferences"), preferences.string()})
        agent.arguments.push_back(each);
    add(std::move(agent));
  }
  wait_for_agents(options);
  restarts_left_ = options.most_restarts;
}

void LocalPool::add(Program program) {
  members_.push_back({.program = std::move(program)});
  start(members_.back());
}

void LocalPool::start(Member& member) {
  launcher_.start(member.program);
  member.started = clock_.now();
  member.restart_at.reset();
}

double pause_before_restart(uint32_t quick_ends) {
  return quick_ends < 2 ? 0 : std::min(std::exp2(quick_ends - 2), kLongestPause);
}

void LocalPool::plan_restart(Member& member, const std::string& end) {
  const std::string& name = member.program.name;
  if (restarts_left_ == 0)
    throw Error(fmt::format("the pool's process '{}' {}:\n{}", name, end, launcher_.log(name)));
  --restarts_left_;
  const double now = clock_.now();
  member.quick_ends = now - member.started < kLongestPause ? member.quick_ends + 1 : 0;
  const double pause = pause_before_restart(member.quick_ends);
  member.restart_at = now + pause;
  log_warning("the pool's process '{}' {}: starts it again{}. Its log ends: {}", name, end,
              pause > 0 ? fmt::format(" in {} s", pause) : "", last_line(launcher_.log(name)));
}

std::string LocalPool::wait_for_scheduler(const std::filesystem::path& endpoint_file,
                                          const LocalPoolOptions& options) {
  for (const Stopwatch watch; !std::filesystem::exists(endpoint_file); std::this_thread::sleep_for(kPoll)) {
    check();
    if (options.check) options.check();
    if (watch.seconds() > options.start_seconds)
      throw Error(fmt::format("the scheduler did not start within {:.0f} s:\n{}", options.start_seconds,
                              launcher_.log("scheduler")));
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
    for (const Member& member : members_)
      text += fmt::format("\n--- {}:\n{}", member.program.name, launcher_.log(member.program.name));
    throw Error(text);
  }
}

void LocalPool::check() {
  for (Member& member : members_) {
    if (!member.restart_at)
      if (const auto end = launcher_.poll(member.program.name)) plan_restart(member, *end);
    if (member.restart_at && clock_.now() >= *member.restart_at) start(member);
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

// Stops the agents first, so that they can still leave the scheduler.
void LocalPool::stop_all() {
  std::vector<std::string> agents;
  for (size_t i = 1; i < members_.size(); ++i) agents.push_back(members_[i].program.name);
  launcher_.stop(agents);
  if (!members_.empty()) launcher_.stop({members_[0].program.name});
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
