// modelet-agent: offers this machine to a scheduler.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>

#include "base/log.h"
#include "base/process.h"
#include "base/program.h"
#include "node_agent/agent.h"
#include "node_agent/capacity.h"
#include "shard/kernels/kernels.h"

namespace {

constexpr const char* kExamples = R"(Examples:
  modelet-agent                                      work for a scheduler on this machine
  modelet-agent --config agent.toml                  keys: the options above, with '_' for '-'
  modelet keygen agent.key                           a key, once; prints the public key for the scheduler's list
  modelet-agent --scheduler tcp://192.168.1.5:5570 --data-address 192.168.1.7 --key agent.key --scheduler-key 5c02...
                                                     across machines, encrypted
Ctrl-C or SIGTERM: the run ends at its next step, with a checkpoint, then the agent leaves; a second one aborts the run.
What an agent takes of a machine, what it reads and writes, and a systemd unit: docs/pool.md.
Exit codes: 0 asked to end (Ctrl-C, SIGTERM), 1 failed while running, 2 bad arguments or configuration file.)";

constexpr double kMebi = 1024.0 * 1024.0;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "node";
}

// What was not given is measured; speeds, unless both that every run needs are given.
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
  CLI::App app("Works for a scheduler: takes part in training runs with the cores and memory it may use.",
               "modelet-agent");
  app.footer(kExamples);
  modelet::agent::AgentOptions options{
      .name = host_name(), .cores = 0, .cache = {}, .make_job = modelet::agent::make_training_job};
  double memory_mib = 0, fetch_mib = 0;
  uint64_t cache_mib = options.cache.bytes >> 20;
  int parent = 0;
  std::string key, scheduler_key;
  app.add_option("--scheduler", options.scheduler.endpoint, "address of the scheduler")
      ->capture_default_str();
  app.add_option("--key", key,
                 "file of this agent's key, made by 'modelet keygen'; connections are encrypted");
  app.add_option("--scheduler-key", scheduler_key,
                 "public key of the scheduler, as 'modelet keygen' printed it");
  app.add_option("--name", options.name, "of this agent, unique in the pool")->capture_default_str();
  app.add_option("--cores", options.cores, "threads a run may use; 0: all this process may use")
      ->capture_default_str()
      ->check(CLI::Range(0u, 4096u));
  app.add_option("--memory-mib", memory_mib,
                 "memory a run may use, in MiB; 0: what is available at the start")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 1e9));
  app.add_option("--gflops", options.gflops, "speed of the cores together, fp32; 0: measured at the start")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 1e9));
  app.add_option("--bf16-gflops", options.bf16_gflops,
                 "the same in bf16; 0: that of --gflops if it is given, else measured at the start")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 1e9));
  app.add_option("--memory-gbps", options.memory_gbps,
                 "GB/s of updates of rows all over the memory; 0: measured at the start")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 1e9));
  app.add_option("--data-address", options.data_address,
                 "address of this machine at which other agents reach it")
      ->capture_default_str();
  app.add_option("--work-dir", options.work_dir, "for runs that name no output folder")
      ->capture_default_str();
  app.add_option("--cache", options.cache.folder,
                 "folder for data that the scheduler sends (default: 'cache' in the work-dir)");
  app.add_option("--cache-mib", cache_mib, "size of that folder; the least recently used data goes first")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 30));
  app.add_option("--fetch-mib-per-second", fetch_mib, "fetch data no faster; 0: as fast as it comes")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 1e6));
  app.add_option("--stop-grace-seconds", options.stop_grace,
                 "a run may take to stop, with a checkpoint, when this agent is asked to leave (SIGTERM)")
      ->capture_default_str()
      ->check(modelet::number_between(0.1, 86400.0));
  app.add_flag("--insecure", options.insecure,
               "allow a data address that other machines can reach without keys; closed test networks only: "
               "connections "
               "are neither encrypted nor authenticated");
  app.add_option("--exit-with-parent", parent, "process id of the parent: end when it ends")
      ->configurable(false);

  return modelet::run_program(app, argc, argv, [&] {
    modelet::shard::kernels::use_instruction_set_from_environment();
    modelet::start_logging("agent");
    modelet::exit_with_parent(parent);
    options.memory_bytes = static_cast<uint64_t>(memory_mib * kMebi);
    options.scheduler.keys = modelet::comm::read_client_keys(key, scheduler_key);
    options.work_dir = std::filesystem::absolute(options.work_dir);
    // An absolute folder stays what it is.
    options.cache.folder = options.work_dir / (options.cache.folder.empty() ? "cache" : options.cache.folder);
    options.cache.bytes = cache_mib << 20;
    options.cache.fetch_bytes_per_second = fetch_mib * kMebi;
    complete(options);
    modelet::agent::Agent agent(options);
    const modelet::StopSignals signals([&agent] { agent.request_stop(); },
                                       modelet::StopSignals::Again::kCallsStop);
    agent.run();
  });
}
