#include "scheduler/cli/verbs/doctor.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "node_agent/machine/doctor.h"
#include "scheduler/cli/options/output.h"
#include "scheduler/cli/pool/pool_options.h"
#include "scheduler/client/pool_client.h"

namespace modelet::cli {
namespace {

// So many nodes are tried, each for some seconds if it does not answer.
constexpr size_t kMostPeersTried = 8;

// The machines of the pool, as its scheduler sees them.
std::vector<std::string> machines_of(const comm::control::SchedulerAddress& scheduler) {
  std::set<std::string> addresses;
  try {
    for (const auto& node : PoolClient(scheduler).nodes().nodes)
      if (!node->address.empty() && addresses.size() < kMostPeersTried) addresses.insert(node->address);
  } catch (const Error&) {  // a finding of its own
  }
  return {addresses.begin(), addresses.end()};
}

void examine_machine(const PoolOptions& options) {
  agent::DoctorOptions asked{.work_dir = options.out.empty() ? "." : options.out,
                             .scheduler = options.address(),
                             .peers = options.peers};
  if (asked.peers.empty()) asked.peers = machines_of(asked.scheduler);
  agent::report(agent::examine(asked), options.json);
}

}  // namespace

void add_doctor_verb(CLI::App& app) {
  const auto options = std::make_shared<PoolOptions>();
  CLI::App& verb =
      add_verb(app, "doctor",
               "Say what keeps this machine from working in a pool, each with what mends it; exit code 1 if "
               "something does. On a machine with an agent: modelet-agent doctor",
               "  modelet doctor --scheduler tcp://192.168.1.5:5570 --key alice.key --scheduler-key 5c02...\n"
               "  modelet-agent doctor --config /etc/modelet/agent.toml",
               options, examine_machine);
  verb.add_option("--folder", options->out, "folder whose disk is looked at (default: the present one)");
  verb.add_option(
      "--peer", options->peers,
      "HOST or HOST:PORT of another node that must be reached (repeatable; default: some of the pool's)");
}

}  // namespace modelet::cli
