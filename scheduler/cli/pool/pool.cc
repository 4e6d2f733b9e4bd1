#include "scheduler/cli/pool/pool.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/system/file.h"
#include "base/system/process.h"
#include "node_agent/train/towers.h"
#include "scheduler/cli/options/output.h"
#include "scheduler/cli/pool/launch.h"
#include "scheduler/cli/pool/nodes.h"
#include "scheduler/cli/pool/pool_options.h"
#include "scheduler/cli/pool/runs.h"
#include "scheduler/cli/pool/top.h"
#include "scheduler/client/fetch_run.h"
#include "scheduler/client/fetch_towers.h"
#include "scheduler/client/run_on_pool.h"
#include "scheduler/client/send_data.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {
namespace {

using nlohmann::json;

// Sends the data, and the checkpoint to continue from, to the scheduler's store.
void send_files(const comm::control::SchedulerAddress& server, const ExperimentData& data,
                const std::filesystem::path& resume, Submission& submission, Reporter& reporter) {
  if (!is_private(submission.experiment)) submission.train_data = send_data(server, data.train, "train", reporter);
  send_start(server, resume, submission, &reporter);
  // Towers are tested together, on this machine.
  if (submission.tasks.empty()) submission.test_data = send_data(server, data.test, "test", reporter);
}

void submit(const PoolOptions& options) {
  Submission submission{.experiment = options.experiment.load()};
  submission.name = options.name.empty() ? options.experiment.run_name() : options.name;
  submission.nodes = options.nodes;
  submission.wait = options.wait;
  submission.priority = options.priority;
  const std::filesystem::path resume =
      options.resume.empty() ? "" : agent::TowerRun::start_of(absolute(options.resume));
  if (!options.out.empty()) shard::require_one_run(absolute(options.out), resume);
  const auto address = options.address();
  const uint16_t port = PoolClient(address).data_port();
  if (port == 0 && (!options.out.empty() || !resume.empty()))
    throw UsageError(fmt::format(
        "{}: this scheduler keeps no files, so none can be sent to its nodes or fetched from them: start "
        "modelet-scheduler with --state or --store",
        options.out.empty() ? "--resume" : "--out"));
  Reporter reporter(options.json);
  const ExperimentData data = load_data(submission.experiment, reporter);
  submission.shape = data.shape;
  const bool follows = options.watch || !options.out.empty();
  std::optional<RunPlace> place;  // of the files that are fetched
  if (follows && port != 0) {
    place.emplace(options.out, resume, submission.name);
    shard::require_one_run(place->path(), resume);
    require_room(place->path(), 0);
  }
  if (port != 0) send_files(comm::control::with_port(address, port), data, resume, submission, reporter);
  if (follows) {
    std::atomic<bool> stop{false};
    const StopSignals signals([&stop] {
      stop = true;
      write_from_signal(kStoppingLine);
    });
    std::optional<RunFolder> folder;
    if (place) {
      folder.emplace(place->path(), resume);
      reporter.record_in(place->path(), to_toml(submission.experiment), submission.experiment.data.labels);
    }
    run_on_pool(address,
                {.submission = submission,
                 .out = place ? place->path() : std::filesystem::path(),
                 .patience = options.patience},
                reporter, stop);
    if (submission.tasks.empty() || !place) return;
    folder.reset();
    assemble_towers(
        submission, place->path(), [&](const json& event) { reporter.handle(event); },
        [&] { return stop.load(); });
    return reporter.require_success();
  }
  const uint64_t run = PoolClient(address).submit(submission);
  if (options.json)
    reporter.handle({{"event", "submitted"}, {"run", run}});
  else
    std::cout << fmt::format("run {} submitted; follow it with: modelet watch {} --scheduler {}\n", run, run,
                             options.scheduler);
}

void add_submit_verb(CLI::App& app) {
  const auto submission = std::make_shared<PoolOptions>();
  CLI::App& submit_verb =
      add_verb(app, "submit", "Submit an experiment to a pool",
               "  modelet submit experiments/quickstart.toml --nodes 2 --watch --insecure\n"
               "  modelet submit big.toml --scheduler tcp://192.168.1.5:5570 --out runs/big",
               submission, submit);
  submission->experiment.add_to(submit_verb);
  submit_verb.add_option("--name", submission->name, "of the run (default: the file's)");
  submit_verb.add_option("--nodes", submission->nodes, "how many nodes it gets; 0: all of the pool")
      ->capture_default_str();
  submit_verb.add_flag("--wait", submission->wait,
                       "for agents that join later, if the pool has fewer nodes than are wanted");
  submit_verb.add_option(
      "--out", submission->out,
      "folder on this machine into which the run's files are fetched while they come; implies --watch. Without both, "
      "the files stay in the pool until modelet fetch brings them (default with --watch: runs/NAME-TIME, or the "
      "folder of --resume)");
  submit_verb.add_option("--resume", submission->resume,
                         "run folder or checkpoint on this machine to continue from");
  submit_verb.add_flag("--watch", submission->watch,
                       "follow the run to its end; Ctrl-C stops it, with a checkpoint");
  submit_verb
      .add_option(
          "--priority", submission->priority,
          "runs of a higher one start first; those of the same one in the order in which they came. Above 0 only "
          "with an administrator's key")
      ->capture_default_str();
  add_patience(submit_verb, *submission);
}

}  // namespace

void add_pool_verbs(CLI::App& app) {
  add_submit_verb(app);
  add_run_verbs(app);
  add_node_verbs(app);
  add_top_verb(app);
  add_launch_verb(app);
}

}  // namespace modelet::cli
