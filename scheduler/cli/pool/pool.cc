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
#include "scheduler/cli/options/output.h"
#include "scheduler/cli/pool/nodes.h"
#include "scheduler/cli/pool/pool_options.h"
#include "scheduler/cli/pool/runs.h"
#include "scheduler/client/fetch_run.h"
#include "scheduler/client/run_on_pool.h"
#include "scheduler/client/send_data.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {
namespace {

using nlohmann::json;

// Checks the folders, as far as they can be seen from here, before anything is sent: an error here would
// otherwise occur on every node.
void check_folders(const std::filesystem::path& out, const std::filesystem::path& resume) {
  if (!resume.empty() && std::filesystem::exists(resume.parent_path())) {
    const std::filesystem::path checkpoint = shard::find_checkpoint(resume);
    const std::filesystem::path run = out.empty() ? shard::run_of(resume) : out;
    if (!run.empty()) shard::require_one_run(run, checkpoint);
  } else if (!out.empty() && resume.empty()) {
    shard::require_one_run(out, {});
  }
}

// Sends the data to the scheduler's store, and the checkpoint to continue from if the nodes share no folder.
void send_files(const PoolOptions& options, uint16_t port, const ExperimentData& data, bool with_checkpoint,
                Submission& submission, Reporter& reporter) {
  const auto server = comm::control::with_port(options.address(), port);
  submission.train_data = send_data(server, data.train, "train", reporter);
  submission.test_data = send_data(server, data.test, "test", reporter);
  if (!with_checkpoint || submission.resume.empty()) return;
  submission.resume_files =
      send_checkpoint(server, shard::Checkpoint::open(shard::find_checkpoint(submission.resume)), &reporter);
  submission.resume.clear();
}

void submit(const PoolOptions& options) {
  Submission submission{.experiment = options.experiment.load()};
  submission.name = options.name.empty() ? options.experiment.run_name() : options.name;
  submission.nodes = options.nodes;
  submission.wait = options.wait;
  submission.priority = options.priority;
  submission.out = absolute(options.out);
  submission.resume = absolute(options.resume);
  check_folders(submission.out, submission.resume);
  Reporter reporter(options.json);
  const ExperimentData data = load_data(submission.experiment, reporter);
  submission.shape = data.shape();
  const uint16_t port = PoolClient(options.address()).data_port();
  const bool keeps_files =
      port != 0 && options.out.empty();  // true: the pool keeps them; false: the nodes share a folder
  std::optional<RunPlace> place;
  if (keeps_files && options.watch)
    submission.out = place.emplace("", submission.resume, submission.name).path().string();
  if (keeps_files && options.watch) require_room(submission.out, 0);
  if (port != 0) send_files(options, port, data, keeps_files, submission, reporter);
  if (options.watch) {
    std::atomic<bool> stop{false};
    const StopSignals signals([&stop] {
      stop = true;
      write_from_signal(kStoppingLine);
    });
    std::optional<RunFolder> folder;
    if (keeps_files) {
      folder.emplace(submission.out,
                     options.resume.empty() ? "" : shard::find_checkpoint(absolute(options.resume)));
      reporter.record_in(submission.out, to_toml(submission.experiment), submission.experiment.data.labels);
    }
    return run_on_pool(options.address(),
                       {.submission = submission, .fetch = keeps_files, .patience = options.patience},
                       reporter, stop);
  }
  const uint64_t run = PoolClient(options.address()).submit(submission);
  if (options.json)
    print_line(json{{"event", "submitted"}, {"run", run}});
  else
    std::cout << fmt::format("run {} submitted; follow it with: modelet watch {} --scheduler {}\n", run, run,
                             options.scheduler);
}

void add_submit_verb(CLI::App& app) {
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
  submit_verb.add_option(
      "--out", submission->out,
      "folder of the run that all nodes share; after a loss such a run goes on from its newest checkpoint "
      "(default: the pool keeps the files, and modelet fetch brings them; with --watch they are fetched into "
      "runs/NAME-TIME, or the folder of --resume)");
  submit_verb.add_option(
      "--resume", submission->resume,
      "checkpoint to continue from; with --out or a scheduler without a store, readable on every "
      "node");
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
}

}  // namespace modelet::cli
