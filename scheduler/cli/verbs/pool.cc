#include "scheduler/cli/verbs/pool.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/system/process.h"
#include "comm/transport/endpoint.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/cli/options/output.h"
#include "scheduler/client/pool_client.h"
#include "scheduler/client/send_data.h"
#include "scheduler/core/core.h"
#include "scheduler/plan/bytes_text.h"
#include "shard/modelet/checkpoint.h"

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
  bool json = false, wait = false, watch = false, insecure = false;

  comm::control::SchedulerAddress address() const {
    comm::check_endpoint(scheduler, false);
    const auto keys = comm::read_client_keys(key, scheduler_key);
    comm::require_keys(scheduler, keys.has_value(), insecure, "the scheduler's address",
                       "--key FILE and --scheduler-key KEY");
    return {scheduler, keys};
  }
};

json to_json(const RunStatusT& run) {
  return {{"run", run.run},
          {"name", run.name},
          {"submitter", run.submitter},
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

// What would fail on every node is said before anything is sent, as far as the folders can be seen from here.
void check_folders(const std::filesystem::path& out, const std::filesystem::path& resume) {
  if (!resume.empty() && std::filesystem::exists(resume.parent_path())) {
    const std::filesystem::path checkpoint = shard::find_checkpoint(resume);
    const std::filesystem::path run = out.empty() ? shard::run_of(resume) : out;
    if (!run.empty()) shard::require_one_run(run, checkpoint);
  } else if (!out.empty() && resume.empty()) {
    shard::require_one_run(out, {});
  }
}

void submit(const PoolOptions& options) {
  Submission submission{.experiment = options.experiment.load()};
  check_folders(absolute(options.out), absolute(options.resume));
  Reporter reporter(options.json);
  {
    const ExperimentData data = load_data(submission.experiment, reporter);
    submission.shape = data.shape();
    if (const uint16_t port = PoolClient(options.address()).data_port(); port != 0) {
      const auto server = comm::control::with_port(options.address(), port);
      submission.train_data = send_data(server, data.train, "train", reporter);
      submission.test_data = send_data(server, data.test, "test", reporter);
    }
  }
  submission.name = options.name.empty() ? options.experiment.run_name() : options.name;
  submission.nodes = options.nodes;
  submission.wait = options.wait;
  submission.out = absolute(options.out);
  submission.resume = absolute(options.resume);
  if (options.watch) {
    std::atomic<bool> stop{false};
    const StopSignals signals([&stop] {
      stop = true;
      write_from_signal(kStoppingLine);
    });
    return run_on_pool(options.address(), submission, reporter, stop);
  }
  const uint64_t run = PoolClient(options.address()).submit(submission);
  if (options.json)
    print_line(json{{"event", "submitted"}, {"run", run}});
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
  Table table({{"run", 9},
               {"name", 8, false, 10},
               {"user", 2, false},
               {"state", 7, false},
               {"step", 5},
               {"nodes", 4},
               {"seconds", 3},
               {"detail", 6, false, 20}});
  for (const auto& run : answer.runs)
    table.add({std::to_string(run->run), run->name, run->submitter, scheduler::state_name(run->state),
               std::to_string(run->step), std::to_string(run->node_names.size()),
               fmt::format("{:.0f}", run->seconds), detail_text(*run)});
  print(table);
}

void list_nodes(const PoolOptions& options) {
  const auto answer = PoolClient(options.address()).nodes();
  if (options.json) {
    for (const auto& node : answer.nodes) print_line(to_json(*node));
    return;
  }
  Table table({{"node", 9, false, 12},
               {"cores", 5},
               {"memory", 3},
               {"GFLOP/s", 4},
               {"GB/s", 2},
               {"run", 8, false},
               {"step", 7},
               {"compute/step", 1},
               {"waiting", 6},
               {"version", 0}});
  for (const auto& node : answer.nodes) {
    const bool measured = node->compute_seconds > 0;
    table.add({node->name, std::to_string(node->cores), scheduler::bytes_text(node->memory_bytes),
               fmt::format("{:.0f}", node->gflops), fmt::format("{:.1f}", node->memory_gbps),
               node->run == 0 ? "free" : std::to_string(node->run), std::to_string(node->step),
               measured ? fmt::format("{:.2f} ms", 1e3 * node->compute_seconds) : "-",
               measured ? fmt::format("{:.0f} %", 100 * node->wait_share) : "-", node->version});
  }
  print(table);
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
  verb.add_flag("--insecure", options->insecure,
                "without keys: whatever answers at the scheduler's address is trusted with the experiment")
      ->envname("MODELET_INSECURE");
  verb.add_flag("--json", options->json, "JSON Lines on standard output");
  verb.callback([options, body] { body(*options); });
  return verb;
}

}  // namespace

void add_pool_verbs(CLI::App& app) {
  const auto submission = std::make_shared<PoolOptions>();
  CLI::App& submit_verb =
      add_verb(app, "submit", "Submit an experiment to a pool",
               "  modelet submit experiments/quickstart.toml --nodes 2 --watch --insecure\n"
               "  modelet submit big.toml --scheduler tcp://192.168.1.5:5570 --out /shared/runs/big",
               submission, submit);
  submission->experiment.add_to(submit_verb);
  submit_verb.add_option("--name", submission->name, "of the run (default: the file's)");
  submit_verb.add_option("--nodes", submission->nodes, "how many nodes it gets; 0: all of the pool")
      ->capture_default_str();
  submit_verb.add_flag("--wait", submission->wait,
                       "for agents that join later, if the pool has fewer nodes than are wanted");
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
