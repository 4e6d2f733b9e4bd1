// modelet-scheduler: the meeting point of a pool's agents and clients.
#include <CLI/CLI.hpp>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "base/program.h"
#include "scheduler/server.h"

namespace {

constexpr const char* kExamples = R"(Examples:
  modelet-scheduler                                   listen on this machine, port 5570
  modelet-scheduler --config scheduler.toml           keys: the options above, with '_' for '-'
  modelet keygen scheduler.key                        a key, once; prints the public key
  modelet-scheduler --listen tcp://192.168.1.5:5570 --key scheduler.key --allow-list allowed
                                                      for other machines: those with a key in 'allowed', a file of
                                                      lines 'agent KEY NAME' and 'user KEY NAME', read again
                                                      whenever it changes
Ctrl-C or SIGTERM ends it; agents abort their runs after --dead-after-seconds, whose last checkpoints continue them.
Exit codes: 0 asked to end (Ctrl-C, SIGTERM), 1 failed while running, 2 bad arguments or configuration file.)";

uint64_t new_session() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Keeps the list of agents and runs of a pool, places runs on agents.", "modelet-scheduler");
  app.footer(kExamples);
  modelet::scheduler::ServerOptions options;
  modelet::scheduler::DataServerOptions data;
  uint64_t store_mib = data.store_bytes >> 20;
  std::string endpoint_file, key, allow_list;
  int parent = 0;
  app.add_option("--listen", options.listen, "address for agents and clients; port '*': a free one")
      ->capture_default_str();
  app.add_option("--key", key,
                 "file of this scheduler's key, made by 'modelet keygen'; connections are encrypted");
  app.add_option("--allow-list", allow_list, "file of the keys of agents and users that may connect");
  app.add_flag("--insecure", options.insecure,
               "allow an address that other machines can reach without keys; closed test networks only");
  app.add_option("--heartbeat-seconds", options.core.heartbeat, "between two heartbeats of an agent")
      ->capture_default_str()
      ->check(modelet::number_between(0.05, 60.0));
  app.add_option("--dead-after-seconds", options.core.dead_after,
                 "silence after which an agent counts as dead")
      ->capture_default_str()
      ->check(modelet::number_between(0.2, 3600.0));
  app.add_option("--stop-grace-seconds", options.core.stop_grace,
                 "a run may take to stop before it is aborted")
      ->capture_default_str()
      ->check(modelet::number_between(0.1, 86400.0));
  app.add_option("--replan-after-seconds", options.core.replan_after,
                 "that a node computes notably longer than the others, or alone than planned, before its run is planned anew")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 86400.0));
  app.add_option("--most-replans", options.core.most_replans, "of a run; 0: none")->capture_default_str();
  app.add_option(
      "--store", data.store,
      "folder for the data of submitted runs, which is sent to agents that cannot read its path; not given: "
      "all can");
  app.add_option("--store-mib", store_mib, "size of that folder; the least recently used data goes first")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 30));
  app.add_option("--data-port", data.port, "on which data is sent; 0: a free one")
      ->capture_default_str()
      ->check(CLI::Range(0u, 65535u));
  app.add_option("--endpoint-file", endpoint_file, "write the address listened on to this file");
  app.add_option("--exit-with-parent", parent, "process id of the parent: end when it ends")
      ->configurable(false);

  return modelet::run_program(app, argc, argv, [&] {
    modelet::start_logging("scheduler");
    modelet::exit_with_parent(parent);
    if (options.core.dead_after < 2 * options.core.heartbeat)
      throw modelet::UsageError("dead-after-seconds must be at least twice heartbeat-seconds");
    if (key.empty() != allow_list.empty())
      throw modelet::UsageError(
          "--key, this scheduler's key, and --allow-list, whom it lets in, belong together");
    if (!key.empty()) options.keys = {modelet::comm::read_key_file(key), allow_list};
    data.store_bytes = store_mib << 20;
    if (!data.store.empty()) options.data = data;
    options.core.session = new_session();
    modelet::scheduler::Server server(options);
    const modelet::StopSignals signals([&server] { server.request_stop(); });
    modelet::log_info("listening on {}", server.endpoint());
    if (!endpoint_file.empty()) {
      modelet::AtomicFile file(endpoint_file);
      file.write(server.endpoint() + "\n");
      file.commit();
    }
    server.run();
    modelet::log_info("stopped");
  });
}
