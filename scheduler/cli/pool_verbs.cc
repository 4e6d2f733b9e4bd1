#include "scheduler/cli/pool_verbs.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/process.h"
#include "scheduler/cli/arguments.h"
#include "scheduler/cli/pool_client.h"
#include "scheduler/cli/send_data.h"
#include "scheduler/core.h"

namespace modelet::cli {
namespace {

using comm::control::NodeStatusT;
using comm::control::RunStatusT;
using nlohmann::json;

// PoolOptions of a verb; one object lives as long as the verb's callback.
struct PoolOptions {
  ExperimentArguments experiment;
  std::string scheduler, key, scheduler_key, name, out, resume;
  uint32_t nodes = 0;
  uint64_t run = 0;
  bool json = false, watch = false;

  comm::control::SchedulerAddress address() const {
    return {scheduler, comm::read_client_keys(key, scheduler_key)};
  }
};

json to_json(const RunStatusT& run) {
  return {{"run", run.run},
          {"name", run.name},
          {"state", scheduler::state_name(run.state)},
          {"detail", run.detail},
          {"step", run.step},
          {"nodes", run.node_names},
          {"seconds", run.seconds},
          {"replans", run.replans},
          {"straggler", run.straggler},
          {"straggler_excess", run.straggler_excess}};
}

json to_json(const NodeStatusT& node) {
  return {{"name", node.name},
          {"version", node.version},
          {"cores", node.cores},
          {"memory_bytes", node.memory_bytes},
          {"gflops", node.gflops},
          {"bf16_gflops", node.bf16_gflops},
          {"memory_gbps", node.memory_gbps},
          {"run", node.run},
          {"step", node.step},
          {"silent_seconds", node.silent_seconds},
          {"compute_seconds", node.compute_seconds},
          {"wait_share", node.wait_share}};
}

void print_line(const json& object) {
  std::cout << object.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
}

void submit(const PoolOptions& options) {
  Submission submission{.experiment = options.experiment.load()};
  Reporter reporter(options.json);
  {
    const ExperimentData data = load_data(submission.experiment);
    submission.shape = data.shape();
    if (const uint16_t port = PoolClient(options.address()).data_port(); port != 0) {
      const auto server = comm::control::with_port(options.address(), port);
      submission.train_data = send_data(server, data.train, "train", reporter);
      submission.test_data = send_data(server, data.test, "test", reporter);
    }
  }
  submission.name = options.name.empty() ? options.experiment.run_name() : options.name;
  submission.nodes = options.nodes;
  submission.out = absolute(options.out);
  submission.resume = absolute(options.resume);
  if (options.watch) {
    std::atomic<bool> stop{false};
    const StopSignals signals([&stop] { stop = true; });
    return run_on_pool(options.address(), submission, reporter, stop);
  }
  const uint64_t run = PoolClient(options.address()).submit(submission);
  if (options.json)
    print_line({{"event", "submitted"}, {"run", run}});
  else
    std::cout << fmt::format("run {} submitted; follow it with: modelet watch {} --scheduler {}\n", run, run,
                             options.scheduler);
}

std::string detail_text(const RunStatusT& run) {
  std::string text = run.detail;
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  if (!run.straggler.empty())
    add(fmt::format("slowest {} +{:.0f} %", run.straggler, 100 * run.straggler_excess));
  if (run.replans > 0) add(fmt::format("re-planned {} times", run.replans));
  return text;
}

void list(const PoolOptions& options) {
  const auto answer = PoolClient(options.address()).list();
  if (options.json) {
    for (const auto& run : answer.runs) print_line(to_json(*run));
    return;
  }
  std::cout << fmt::format("{:>5}  {:<20}  {:<10}  {:>9}  {:>5}  {:>8}  {}\n", "run", "name", "state", "step",
                           "nodes", "seconds", "detail");
  for (const auto& run : answer.runs)
    std::cout << fmt::format("{:>5}  {:<20}  {:<10}  {:>9}  {:>5}  {:>8.0f}  {}\n", run->run, run->name,
                             scheduler::state_name(run->state), run->step, run->node_names.size(),
                             run->seconds, detail_text(*run));
}

void list_nodes(const PoolOptions& options) {
  const auto answer = PoolClient(options.address()).nodes();
  if (options.json) {
    for (const auto& node : answer.nodes) print_line(to_json(*node));
    return;
  }
  std::cout << fmt::format("{:<20}  {:>5}  {:>10}  {:>9}  {:>6}  {:<8}  {:>9}  {:>12}  {:>7}  {}\n", "node",
                           "cores", "memory", "GFLOP/s", "GB/s", "run", "step", "compute/step", "waiting",
                           "version");
  for (const auto& node : answer.nodes)
    std::cout << fmt::format(
        "{:<20}  {:>5}  {:>10}  {:>9.0f}  {:>6.1f}  {:<8}  {:>9}  {:>12}  {:>7}  {}\n", node->name,
        node->cores, scheduler::bytes_text(node->memory_bytes), node->gflops, node->memory_gbps,
        node->run == 0 ? "free" : std::to_string(node->run), node->step,
        node->compute_seconds > 0 ? fmt::format("{:.2f} ms", 1e3 * node->compute_seconds) : "-",
        node->compute_seconds > 0 ? fmt::format("{:.0f} %", 100 * node->wait_share) : "-", node->version);
}

void watch(const PoolOptions& options) {
  Reporter reporter(options.json);
  std::atomic<bool> stop{false};
  const StopSignals signals([&stop] { stop = true; });
  watch_on_pool(options.address(), options.run, reporter, stop);
}

void stop(const PoolOptions& options) {
  const RunStatusT status = PoolClient(options.address()).stop(options.run);
  if (options.json) return print_line(to_json(status));
  std::cout << fmt::format("run {} {}{}{}\n", status.run, scheduler::state_name(status.state),
                           status.detail.empty() ? "" : ": ", status.detail);
}

// A verb with the options that all have.
CLI::App& add_verb(CLI::App& app, const std::string& name, const std::string& description,
                   const std::string& examples, const std::shared_ptr<PoolOptions>& options,
                   void (*body)(const PoolOptions&)) {
  CLI::App& verb = *app.add_subcommand(name, description);
  verb.footer("Examples:\n" + examples);
  verb.add_option("--scheduler", options->scheduler,
                  "address of the scheduler, such as tcp://192.168.1.5:5570")
      ->default_val("tcp://127.0.0.1:5570")
      ->envname("MODELET_SCHEDULER");
  verb.add_option("--key", options->key,
                  "file of your key, made by 'modelet keygen'; for a scheduler with keys")
      ->envname("MODELET_KEY");
  verb.add_option("--scheduler-key", options->scheduler_key,
                  "public key of the scheduler, as 'modelet keygen' printed it there")
      ->envname("MODELET_SCHEDULER_KEY");
  verb.add_flag("--json", options->json, "JSON Lines on standard output");
  verb.callback([options, body] { body(*options); });
  return verb;
}

}  // namespace

void add_pool_verbs(CLI::App& app) {
  const auto submission = std::make_shared<PoolOptions>();
  CLI::App& submit_verb =
      add_verb(app, "submit", "Submit an experiment to a pool",
               "  modelet submit experiments/quickstart.toml --nodes 2 --watch\n"
               "  modelet submit big.toml --scheduler tcp://192.168.1.5:5570 --out /shared/runs/big",
               submission, submit);
  submission->experiment.add_to(submit_verb);
  submit_verb.add_option("--name", submission->name, "of the run (default: the file's)");
  submit_verb.add_option("--nodes", submission->nodes, "how many nodes it gets; 0: all of the pool")
      ->capture_default_str();
  submit_verb.add_option("--out", submission->out,
                         "folder of the run, on every node (default: that of --resume, else a new one in the "
                         "agent's working folder)");
  submit_verb.add_option("--resume", submission->resume,
                         "checkpoint to continue from, readable on every node");
  submit_verb.add_flag("--watch", submission->watch,
                       "follow the run to its end; Ctrl-C stops it, with a checkpoint");

  add_verb(app, "list", "List the runs of a pool", "  modelet list --scheduler tcp://192.168.1.5:5570",
           std::make_shared<PoolOptions>(), list);
  add_verb(app, "nodes", "List the nodes of a pool", "  modelet nodes --json",
           std::make_shared<PoolOptions>(), list_nodes);

  const auto watched = std::make_shared<PoolOptions>();
  add_verb(app, "watch", "Follow a run of a pool to its end; Ctrl-C stops watching, not the run",
           "  modelet watch 3\n  modelet watch 3 --json", watched, watch)
      .add_option("run", watched->run, "number of the run")
      ->required()
      ->check(CLI::PositiveNumber);  // or -1 would be the largest there is
  const auto stopped = std::make_shared<PoolOptions>();
  add_verb(app, "stop", "Stop a run of a pool at its next step, with a checkpoint", "  modelet stop 3",
           stopped, stop)
      .add_option("run", stopped->run, "number of the run")
      ->required()
      ->check(CLI::PositiveNumber);  // or -1 would be the largest there is
}

}  // namespace modelet::cli
