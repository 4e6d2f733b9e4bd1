// The agent program with jobs that never end by themselves, for tests of the processes of a pool.
#include <CLI/CLI.hpp>

#include "base/system/log.h"
#include "base/system/process.h"
#include "base/system/program.h"
#include "node_agent/agent/agent.h"
#include "tests/scheduler/scripted_job.h"

int main(int argc, char** argv) {
  CLI::App app("An agent whose jobs never end.", "fake-agent");
  app.allow_extras();  // accepts options of the real program
  modelet::agent::AgentOptions options{
      .cores = 1, .memory_bytes = uint64_t{4} << 30, .gflops = 1, .memory_gbps = 1};
  options.make_job = [](modelet::agent::TrainJob job) {
    return std::make_unique<modelet::testing_support::ScriptedJob>(
        std::move(job), modelet::testing_support::Script{.endless = true});
  };
  int parent = 0;
  app.add_option("--scheduler", options.scheduler.endpoint);
  app.add_option("--name", options.name);
  app.add_option("--data-address", options.data_address);
  app.add_option("--work-dir", options.work_dir);
  std::string key, scheduler_key;
  app.add_option("--key", key);
  app.add_option("--scheduler-key", scheduler_key);
  app.add_option("--exit-with-parent", parent);
  return modelet::run_program(app, argc, argv, [&] {
    modelet::start_logging("fake-agent");
    modelet::exit_with_parent(parent);
    options.scheduler.keys = modelet::comm::read_client_keys(key, scheduler_key);
    modelet::agent::Agent agent(options);
    const modelet::StopSignals signals([&agent] { agent.request_stop(); },
                                       modelet::StopSignals::Again::kCallsStop);
    agent.run();
  });
}
