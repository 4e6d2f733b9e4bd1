// modelet-agent: offers this machine to a scheduler.
#include <spdlog/fmt/fmt.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/parallel/idle_thread.h"
#include "base/system/log.h"
#include "base/system/process.h"
#include "base/system/program.h"
#include "base/system/service_notice.h"
#include "base/system/wake_event.h"
#include "comm/security/keys.h"
#include "node_agent/agent/agent.h"
#include "node_agent/agent/join.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/machine/doctor.h"
#include "node_agent/owner/learning_ledger.h"
#include "node_agent/owner/notice/notice_watcher.h"
#include "node_agent/owner/owner_service.h"
#include "node_agent/owner/status_text.h"
#include "shard/kernels/simd/instruction_set.h"

namespace {

using namespace modelet::agent;  // NOLINT(google-build-using-namespace): this is its program

constexpr const char* kExamples = R"(Examples:
  modelet-agent --insecure                           work for a scheduler on this machine, without keys
  modelet-agent --config agent.toml                  a file with the options above, '_' for '-'
  modelet-agent join modelet1-...                    once, with what 'modelet-scheduler invite' printed: makes a key,
                                                     enrols it, writes agent.toml and starts the unit
  modelet keygen agent.key                           makes a key, once; prints the public key for the scheduler's list
  modelet-agent --scheduler tcp://192.168.1.5:5570 --data-address 192.168.1.7 --key agent.key --scheduler-key 5c02...
                                                     across machines, encrypted; --data-root: what runs may read
  modelet-agent --preferences lend.toml --notice aws what this machine lends, and when (docs/owners.md); leave when
                                                     the cloud says that the machine goes away
  modelet-agent --status                             what the agent of this machine does, and has used
  modelet-agent pause 30                             it takes no core for 30 minutes; 'resume': it may again
  modelet-agent drain                                it leaves the pool, and comes back after 'resume'
The owner of the machine comes first: when others want its cores, the agent uses fewer, or none. With --dedicated not.
Ctrl-C or SIGTERM: the agent works on until its run can go on without it, then leaves; a second one ends its part at once.
What an agent takes of a machine, what it reads and writes, and a systemd unit: docs/pool.md.
  modelet-agent --config agent.toml --exit-code-when-asked 75
                                                     a batch system takes the job of an agent that it ended for undone
Exit codes: 0 asked to end (Ctrl-C, SIGTERM, a notice; or --exit-code-when-asked), 1 failed while running, 2 bad arguments
or configuration file. Under systemd (Type=notify) the unit is active once the agent is in the pool.)";

constexpr double kMebi = 1024.0 * 1024.0;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "node";
}

// The folder of an agent that was given none: where systemd or the desktop's standards want such files, and not in
// whichever folder it was started in. Agents that one user starts have folders of their own by their names; a
// systemd unit has one folder, for one agent.
std::filesystem::path default_work_dir(const std::string& name) {
  const auto variable = [](const char* of) {
    const char* const value = std::getenv(of);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  const std::string states = variable("STATE_DIRECTORY").string();  // several are separated by ':'
  if (!states.empty()) return states.substr(0, states.find(':'));
  std::filesystem::path state = variable("XDG_STATE_HOME");
  if (!state.is_absolute() && variable("HOME").is_absolute()) state = variable("HOME") / ".local/state";
  if (!state.is_absolute() || name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
    throw modelet::UsageError(
        "give --work-dir: without HOME, XDG_STATE_HOME or STATE_DIRECTORY, or with a --name that names no folder, there "
        "is no folder for what this agent keeps");
  return state / "modelet" / name;
}

// What the owner lends, and how the agent learns that the machine is about to go away.
struct Lending {
  std::string preferences, notice, notice_address;
  bool dedicated = false;
};

// A run's plan stays within what is lent. This limit holds if the plan is wrong.
void limit_memory(const Preferences& preferences, uint32_t threads) {
  if (preferences.memory_mib == 0) return;
  constexpr uint64_t kProgram = uint64_t{512} << 20, kStack = uint64_t{16} << 20;
  const uint64_t lent = preferences.memory_mib << 20;
  modelet::limit_own_memory(lent + lent / 4 + kProgram + kStack * threads);
}

// The program is to end, because of a signal or because the machine goes away. It lasts for all stays, so a signal
// that comes while an agent leaves, or between two stays, is not lost.
class End {
 public:
  End() : signals_([this] { signalled(); }, modelet::StopSignals::Again::kCallsStop) {}

  void comes() { near_.set(); }
  bool is_near() const { return near_.is_set(); }
  int fd() const { return near_.fd(); }  // readable once it is near

  // While it lives, signals reach the agent.
  class Listener {
   public:
    Listener(End& end, Agent& agent) : end_(end) {
      end_.agent_ = &agent;
      if (end_.is_near()) agent.request_stop();
    }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    ~Listener() { end_.agent_ = nullptr; }

   private:
    End& end_;
  };

 private:
  void signalled() {
    near_.set();
    if (Agent* const agent = agent_) agent->request_stop();
  }

  modelet::WakeEvent near_;
  std::atomic<Agent*> agent_{nullptr};
  modelet::StopSignals signals_;  // must be last: signals come from its construction on
};

// One stay in the pool, from registering to leaving. Returns true if the agent left because its owner or
// other programs want the machine: then it may come back, unless the end is near.
bool stay(AgentOptions options, OwnerService* owner, const Lending& lending, End& end) {
  constexpr double kAskInterval = 5, kMargin = 1;  // seconds; clouds ask not to be polled more often
  if (!find_data_address(options, end.fd())) return false;
  Agent agent(options);
  const End::Listener listener(end, agent);
  std::optional<NoticeWatcher> watcher;
  if (!lending.notice.empty())
    watcher.emplace(make_notice_source(lending.notice, {.address = lending.notice_address,
                                                        .utc = {},
                                                        .check =
                                                            [&end] {
                                                              if (end.is_near())
                                                                throw modelet::Interrupted("the agent ends");
                                                            }}),
                    kAskInterval, [&](const Notice& notice) {
                      end.comes();
                      agent.leave(std::max(kMargin, notice.seconds - kMargin), notice.reason);
                    });
  if (owner == nullptr) {
    agent.run();
    return false;
  }
  const OwnerService::Attendance attendance(
      *owner, [&](const std::string& reason) { agent.leave(options.leave_seconds, reason, true); });
  agent.run();
  return attendance.asked_to_leave();
}

// The memory that an agent offers when it comes back: others may now use what was free at the start. Not less
// than half, because the agent offers this until it leaves again, when the others may have long ended.
uint64_t offered_again(uint64_t first) {
  const auto usable = usable_memory();
  return usable ? std::clamp(usable->bytes, first / 2, first) : first;  // not known: the owner said how much
}

// Tells the service manager how the agent is doing. It is ready, in systemd's words active, once it is in the pool.
void tell_manager(modelet::ServiceNotice& notice, const Beat& beat, const std::string& scheduler,
                  bool end_is_near) {
  if (beat.registered) notice.ready();
  if (end_is_near) notice.stopping();
  if (!beat.registered)
    notice.status("looks for the scheduler at " + scheduler);
  else if (beat.run != 0)
    notice.status("works for run " + std::to_string(beat.run));
  else
    notice.status("free: waits for a run");
}

void lend(AgentOptions options, const Preferences& preferences, const Lending& lending) {
  End end;
  modelet::ServiceNotice notice;
  const auto tell = [&notice, &end, scheduler = options.scheduler.endpoint](const Beat& beat) {
    tell_manager(notice, beat, scheduler, end.is_near());
  };
  tell(Beat{});
  std::error_code failure;  // reported when a file is made there
  std::filesystem::create_directories(options.work_dir, failure);
  std::optional<LearningLedger> ledger;
  if (const std::vector<std::string> names = options.private_data.names(); !names.empty()) {
    ledger.emplace(owner_socket_path(options.work_dir, options.name).replace_extension("learned"), names);
    options.private_data.count_in(*ledger);
  }
  options.on_beat = [&ledger, tell](const Beat& beat) {
    if (ledger) ledger->count(beat);
    tell(beat);
  };
  if (lending.dedicated) {
    stay(options, nullptr, lending, end);
    return;
  }
  OwnerService owner({.name = options.name,
                      .work_dir = options.work_dir,
                      .threads = options.cores,
                      .preferences = preferences,
                      .ledger = ledger ? &*ledger : nullptr,
                      .bytes_sent = [sending = options.sending] { return sending->total(); },
                      .on_away =
                          [&notice](const std::string& reason) {
                            notice.ready();  // the service does what its owner wants
                            notice.status("away from the pool: " + reason);
                          }});
  options.throttle = &owner.throttle();
  options.on_beat = [&owner, count = options.on_beat](const Beat& beat) {
    owner.count(beat);
    count(beat);
  };
  options.why_suspended = [&owner] { return owner.why_fewer(); };
  const uint64_t most_memory = options.memory_bytes;
  for (bool returns = false; !end.is_near() && owner.wait_until_wanted(end.fd()); returns = true) {
    if (returns) options.memory_bytes = offered_again(most_memory);
    if (!stay(options, &owner, lending, end)) return;
  }
}

void ask(const AgentOptions& options, const std::string& request, bool as_json) {
  const nlohmann::json status = ask_agent(owner_socket_path(options.work_dir, options.name), request);
  std::cout << (as_json ? status.dump() + "\n" : status_text(status));
}

// Where the options of a joined agent go: root's are for the unit of the system.
std::filesystem::path default_config() {
  if (::geteuid() == 0) return "/etc/modelet/agent.toml";
  const auto folder = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  if (folder("XDG_CONFIG_HOME").is_absolute()) return folder("XDG_CONFIG_HOME") / "modelet/agent.toml";
  if (folder("HOME").is_absolute()) return folder("HOME") / ".config/modelet/agent.toml";
  throw modelet::UsageError(
      "give --config: without HOME or XDG_CONFIG_HOME there is no folder for the agent's options");
}

constexpr const char* kUnit = "modelet-agent.service";

// Whether the system has the unit, and this process may start it.
bool can_start_unit() {
  if (::geteuid() != 0 || !std::filesystem::exists("/run/systemd/system")) return false;
  for (const char* folder : {"/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"})
    if (std::filesystem::exists(std::filesystem::path(folder) / kUnit)) return true;
  return false;
}

void join_pool(JoinOptions options, bool starts) {
  if (options.config.empty()) options.config = default_config();
  const Joined joined = join(options);
  std::cout << fmt::format("'{}' is enrolled at {} (key {}, in {}); its options are in {}\n", joined.name,
                           joined.scheduler, modelet::comm::fingerprint(joined.public_key),
                           joined.key.string(), options.config.string())
            << std::flush;
  if (starts && can_start_unit()) {
    // Restarted, because an agent that waits, or works for another pool, has other options.
    const std::string command = fmt::format("systemctl enable --quiet {0} && systemctl restart {0}", kUnit);
    if (std::system(command.c_str()) != 0)  // NOLINT(cert-env33-c): a fixed command
      throw modelet::Error(fmt::format(
          "the agent is enrolled, but its unit does not start: 'systemctl status {}' says why", kUnit));
    std::cout << kUnit << " is started, now and whenever this machine starts\n";
    return;
  }
  std::cout << fmt::format("Start it: modelet-agent --config {}\n", options.config.string());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Lends this machine to a pool: takes part in training runs, within the cores and memory that it may use.",
      "modelet-agent");
  app.footer(kExamples);
  AgentOptions options{.name = host_name(), .cores = 0, .work_dir = {}, .cache = {}};
  std::vector<std::filesystem::path> data_roots;
  std::vector<std::string> private_data;
  Lending lending;
  bool status = false, as_json = false;
  double memory_mib = 0, fetch_mib = 0;
  uint64_t cache_mib = options.cache.bytes >> 20, snapshot_mib = options.snapshot_bytes >> 20;
  int parent = 0;
  std::string key, scheduler_key;
  app.add_option("--scheduler", options.scheduler.endpoint, "address of the scheduler")
      ->capture_default_str();
  app.add_option("--key", key,
                 "file of this agent's key, made by 'modelet keygen'; connections are encrypted");
  app.add_option("--scheduler-key", scheduler_key,
                 "public key of the scheduler, as 'modelet keygen' printed it");
  app.add_option("--name", options.name, "name of this agent, unique in the pool")->capture_default_str();
  app.add_option("--cores", options.cores, "threads that a run may use; 0: all that this process may use")
      ->capture_default_str()
      ->check(CLI::Range(0u, 4096u));
  app.add_option("--memory-mib", memory_mib, "memory that a run may use; 0: what is available at the start")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 1e9));
  app.add_option("--gflops", options.gflops, "speed of all cores together in fp32; 0: measured at the start")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 1e9));
  app.add_option("--bf16-gflops", options.bf16_gflops,
                 "the same in bf16; 0: that of --gflops if it is given, else measured at the start")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 1e9));
  app.add_option(
         "--memory-gbps", options.memory_gbps,
         "memory traffic in GB/s while rows all over the memory are updated; 0: measured at the start")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 1e9));
  app.add_option(
      "--data-address", options.data_address,
      "address at which other agents reach this machine (default: its address on the way to the scheduler); "
      "ipc://FOLDER if all agents are on this machine and only this user may enter the folder");
  app.add_option(
      "--work-dir", options.work_dir,
      "folder of what the agent keeps; each run writes into a folder of its own in it (default: $STATE_DIRECTORY of "
      "a systemd unit, else modelet/NAME in $XDG_STATE_HOME or ~/.local/state)");
  app.add_option(
      "--data-root", data_roots,
      "folder beneath which runs may read the data of their experiments (repeatable); not needed if the "
      "scheduler has a --store");
  app.add_option(
      "--private", private_data,
      "NAME=PATH: data that stays on this machine, and that runs with data.train = \"private:NAME\" may learn from "
      "(repeatable; docs/privacy.md)");
  app.add_option("--cache", options.cache.folder,
                 "folder for data that the scheduler sends (default: 'cache' in the work-dir)");
  app.add_option("--cache-mib", cache_mib,
                 "limit of that folder; the least recently used data is removed first")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 30));
  app.add_option("--snapshot-mib", snapshot_mib,
                 "limit of the parts of snapshots that this agent holds for its runs and for other nodes, in "
                 "'holder' in the work-dir; at most half of that disk")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 30));
  app.add_option(
      "--local-store", options.local_store,
      "the scheduler's --store, if it is a folder of this machine that this agent may write to: parts of "
      "snapshots get there as hard links, and are not sent");
  app.add_option("--fetch-mib-per-second", fetch_mib, "limit of the speed at which data is fetched; 0: none")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 1e6));
  app.add_option(
         "--leave-seconds", options.leave_seconds,
         "time that this agent works on when it is asked to leave (SIGTERM), so that its runs can go on "
         "without it and lose nothing")
      ->capture_default_str()
      ->check(modelet::number_between(0.1, 86400.0));
  app.add_option(
         "--exit-code-when-asked", options.exit_code_when_asked,
         "exit code of an agent that was asked to end (SIGTERM, Ctrl-C, a notice), for batch systems that "
         "start again what did not end with 0")
      ->capture_default_str()
      ->check(CLI::Range(0, 255));
  app.add_option("--preferences", lending.preferences,
                 "file that says what the owner lends of this machine, and when");
  app.add_flag("--dedicated", lending.dedicated,
               "the machine is for the pool: the agent makes no room for others, and does not listen to its "
               "owner's socket")
      ->envname("MODELET_DEDICATED");
  app.add_option(
      "--notice", lending.notice,
      "source of notices that this machine will be taken away: aws, gcp, azure, file:PATH or command:COMMAND");
  app.add_option("--notice-address", lending.notice_address,
                 "address of the cloud's metadata, if it is not the usual one");
  app.add_flag("--status", status, "say what the agent of this work-dir and name does")->configurable(false);
  app.add_flag("--json", as_json, "say it in JSON")->configurable(false);
  std::string request, minutes;
  const auto add_request = [&](const char* verb, const char* meaning) {
    CLI::App* const sub = app.add_subcommand(verb, meaning)->fallthrough();
    sub->callback([&request, verb] { request = verb; });
    return sub;
  };
  add_request("pause", "the agent takes no core, for some minutes or until 'resume'")
      ->add_option("minutes", minutes, "minutes")
      ->check(modelet::number_between(0.01, 525600.0));
  add_request("resume", "the agent may work again");
  add_request("drain", "the agent leaves its run to others, and the pool, until 'resume'");
  JoinOptions joining;
  bool joins = false, no_start = false;
  CLI::App* const join_verb = app.add_subcommand(
      "join", "once: make a key, enrol it at a scheduler, write the file of options and start the unit");
  join_verb->footer(
      "Again, it goes on where it was interrupted. Options that the file has already stay.\n"
      "Examples:\n"
      "  modelet-agent join modelet1-...                      as root: /etc/modelet/agent.toml, modelet-agent.service\n"
      "  modelet-agent join modelet1-... --name office-17 --config ~/agent.toml --no-start");
  join_verb->add_option("invitation", joining.invitation, "what 'modelet-scheduler invite' printed")
      ->required();
  join_verb->add_option("--name", joining.name,
                        "name of the agent, unique in the pool (default: the host's name)");
  join_verb->add_option(
      "--config", joining.config,
      "file of options to write (default: /etc/modelet/agent.toml for root, else modelet/agent.toml in "
      "$XDG_CONFIG_HOME or ~/.config); the key is written beside it");
  join_verb
      ->add_option("--user", joining.user,
                   "as root: user to whom the key is given, if there is one of this name")
      ->default_val("modelet");
  join_verb->add_flag("--no-start", no_start, "only say how the agent is started");
  join_verb->callback([&joins] { joins = true; });
  DoctorOptions examined;
  bool is_examined = false;
  CLI::App* const doctor_verb =
      app.add_subcommand("doctor", "say what keeps this machine from working in the pool, and what mends it")
          ->fallthrough();
  doctor_verb->footer(
      "Looks at the clock, the disk, limits of files and threads, openat2, the ports, and the ways to the scheduler and to "
      "other nodes. Exit code 1 if something is wrong.\n"
      "Examples:\n"
      "  modelet-agent doctor --config /etc/modelet/agent.toml\n"
      "  modelet-agent doctor --config agent.toml --peer 192.168.1.8");
  doctor_verb->add_option("--peer", examined.peers,
                          "HOST or HOST:PORT of another node that must be reached (repeatable)");
  doctor_verb->callback([&is_examined] { is_examined = true; });
  app.require_subcommand(0, 1);
  app.add_flag("--insecure", options.insecure,
               "work without keys, for whatever answers at the scheduler's address: connections are neither "
               "encrypted nor authenticated")
      ->envname("MODELET_INSECURE");
  app.add_option("--exit-with-parent", parent, "process id of the parent: end when it ends")
      ->configurable(false);

  bool left = false;
  const int code = modelet::run_program(app, argc, argv, [&] {
    if (joins) {
      modelet::start_logging("agent");
      if (joining.name.empty()) joining.name = options.name;
      return join_pool(joining, !no_start);
    }
    if (options.work_dir.empty()) options.work_dir = default_work_dir(options.name);
    options.work_dir = std::filesystem::absolute(options.work_dir);
    if (is_examined) {
      modelet::start_logging("agent");
      examined.work_dir = options.work_dir;
      examined.scheduler = {options.scheduler.endpoint, modelet::comm::read_client_keys(key, scheduler_key)};
      examined.data_address = options.data_address;
      return report(examine(examined), as_json);
    }
    if (status && !request.empty())
      throw modelet::UsageError("--status and '" + request + "' are two requests: leave one of them out");
    if (status) request = "status";
    if (!request.empty()) return ask(options, minutes.empty() ? request : request + ' ' + minutes, as_json);
    modelet::shard::kernels::use_instruction_set_from_environment();
    ::umask(0077);                                         // only the agent's owner may read what runs write
    if (!lending.dedicated) modelet::lower_io_priority();  // of all threads: none has been started yet
    modelet::start_logging("agent");
    modelet::LogTail log(size_t{256} << 10);
    options.log = &log;
    modelet::exit_with_parent(parent);
    constexpr uint64_t kFiles = 100;  // sockets, some files of snapshots and a few other agents
    modelet::require_descriptors(kFiles, "an agent");
    modelet::give_back_large_pieces();
    options.memory_bytes = static_cast<uint64_t>(memory_mib * kMebi);
    options.scheduler.keys = modelet::comm::read_client_keys(key, scheduler_key);
    for (auto& root : data_roots) root = std::filesystem::absolute(root);
    options.make_job = training_jobs(DataRoots(data_roots));
    // If the folder is absolute, it stays unchanged.
    options.cache.folder = options.work_dir / (options.cache.folder.empty() ? "cache" : options.cache.folder);
    options.cache.bytes = cache_mib << 20;
    options.snapshot_bytes = snapshot_mib << 20;
    options.cache.fetch_bytes_per_second = fetch_mib * kMebi;
    const Preferences preferences =
        lending.preferences.empty() ? Preferences{} : read_preferences(lending.preferences);
    options.private_data = PrivateData(private_data, preferences.learning);
    // Samples are in this process's memory. It is neither written to a core file nor shown to other programs of the user.
    if (!private_data.empty() && ::prctl(PR_SET_DUMPABLE, 0) != 0)
      throw modelet::Error("--private: the system does not let the agent forbid core files of its memory");
    if (!lending.notice.empty())
      make_notice_source(lending.notice, {.address = lending.notice_address});  // only to check it
    complete_offer(options, preferences);
    limit_memory(preferences, options.cores);
    lend(options, preferences, lending);
    left = true;
  });
  return left ? options.exit_code_when_asked : code;
}
