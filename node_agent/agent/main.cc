// modelet-agent: offers this machine to a scheduler.
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>

#include "base/system/log.h"
#include "base/system/process.h"
#include "base/system/program.h"
#include "node_agent/agent/agent.h"
#include "node_agent/machine/capacity.h"
#include "shard/kernels/simd/instruction_set.h"

namespace {

constexpr const char* kExamples = R"(Examples:
  modelet-agent --insecure                           work for a scheduler on this machine, without keys
  modelet-agent --config agent.toml                  a file with the options above, '_' for '-'
  modelet keygen agent.key                           makes a key, once; prints the public key for the scheduler's list
  modelet-agent --scheduler tcp://192.168.1.5:5570 --data-address 192.168.1.7 --key agent.key --scheduler-key 5c02...
                                                     across machines, encrypted; --data-root and --out-root: what
                                                     runs may read, and where they may write
Ctrl-C or SIGTERM: the agent works on until its run can go on without it, then leaves; a second one ends its part at once.
What an agent takes of a machine, what it reads and writes, and a systemd unit: docs/pool.md.
Exit codes: 0 asked to end (Ctrl-C, SIGTERM), 1 failed while running, 2 bad arguments or configuration file.)";

constexpr double kMebi = 1024.0 * 1024.0;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "node";
}

// Measures what was not given. Speeds are measured unless both that every run needs are given.
void complete(modelet::agent::AgentOptions& options) {
  using namespace modelet::agent;
  if (options.cores == 0) options.cores = usable_cores();
  if (options.memory_bytes == 0) options.memory_bytes = usable_memory_bytes();
  if (options.gflops > 0 && options.bf16_gflops == 0) options.bf16_gflops = options.gflops;
  if (options.gflops > 0 && options.memory_gbps > 0) return;
  const Speed speed = measure_speed(options.cores);
  if (options.gflops == 0) options.gflops = speed.gflops;
  if (options.bf16_gflops == 0) options.bf16_gflops = speed.bf16_gflops;
  if (options.memory_gbps == 0) options.memory_gbps = speed.memory_gbps;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Lends this machine to a pool: takes part in training runs, within the cores and memory that it may use.",
      "modelet-agent");
  app.footer(kExamples);
  modelet::agent::AgentOptions options{.name = host_name(), .cores = 0, .cache = {}};
  modelet::agent::Roots roots;
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
  app.add_option("--work-dir", options.work_dir,
                 "folder beneath which runs may write; a run that names no folder gets one in it")
      ->capture_default_str();
  app.add_option("--out-root", roots.out, "another folder beneath which runs may write (repeatable)");
  app.add_option(
      "--data-root", roots.data,
      "folder beneath which runs may read the data of their experiments (repeatable); not needed if the "
      "scheduler has a --store");
  app.add_option("--cache", options.cache.folder,
                 "folder for data that the scheduler sends (default: 'cache' in the work-dir)");
  app.add_option("--cache-mib", cache_mib,
                 "limit of that folder; the least recently used data is removed first")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 30));
  app.add_option("--snapshot-mib", snapshot_mib,
                 "limit of the parts of snapshots that this agent holds for its runs and for other nodes, in "
                 "'holder' in the work-dir")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 30));
  app.add_option("--fetch-mib-per-second", fetch_mib, "limit of the speed at which data is fetched; 0: none")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 1e6));
  app.add_option(
         "--leave-seconds", options.leave_seconds,
         "time that this agent works on when it is asked to leave (SIGTERM), so that its runs can go on "
         "without it and lose nothing")
      ->capture_default_str()
      ->check(modelet::number_between(0.1, 86400.0));
  app.add_flag("--insecure", options.insecure,
               "work without keys, for whatever answers at the scheduler's address: connections are neither "
               "encrypted nor authenticated")
      ->envname("MODELET_INSECURE");
  app.add_option("--exit-with-parent", parent, "process id of the parent: end when it ends")
      ->configurable(false);

  return modelet::run_program(app, argc, argv, [&] {
    modelet::shard::kernels::use_instruction_set_from_environment();
    ::umask(0077);  // what runs write is for the agent's owner
    modelet::start_logging("agent");
    modelet::exit_with_parent(parent);
    modelet::raise_descriptor_limit();
    options.memory_bytes = static_cast<uint64_t>(memory_mib * kMebi);
    options.scheduler.keys = modelet::comm::read_client_keys(key, scheduler_key);
    options.work_dir = std::filesystem::absolute(options.work_dir);
    for (auto* list : {&roots.data, &roots.out})
      for (auto& root : *list) root = std::filesystem::absolute(root);
    check(roots);
    // An absolute folder stays what it is.
    options.cache.folder = options.work_dir / (options.cache.folder.empty() ? "cache" : options.cache.folder);
    options.cache.bytes = cache_mib << 20;
    options.snapshot_bytes = snapshot_mib << 20;
    roots.out.push_back(options.work_dir);
    roots.kept_out = options.cache.folder;
    options.check_folders = [&roots](const modelet::agent::TrainJob& job) { check_folders(roots, job); };
    options.make_job = modelet::agent::training_jobs(roots);
    options.cache.fetch_bytes_per_second = fetch_mib * kMebi;
    complete(options);
    modelet::agent::Agent agent(options);
    const modelet::StopSignals signals([&agent] { agent.request_stop(); },
                                       modelet::StopSignals::Again::kCallsStop);
    agent.run();
  });
}
