#include "scheduler/cli/verbs/train.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/experiment/towers.h"
#include "base/system/file.h"
#include "base/system/process.h"
#include "node_agent/train/data/private_samples.h"
#include "node_agent/train/local_run.h"
#include "node_agent/train/towers.h"
#include "node_agent/train/train.h"
#include "scheduler/cli/dashboard/run_dashboard.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/cli/options/recipe.h"
#include "scheduler/client/chrome_trace.h"
#include "scheduler/client/fetch_run.h"
#include "scheduler/client/fetch_towers.h"
#include "scheduler/client/launch/local_pool.h"
#include "scheduler/client/pool_client.h"
#include "scheduler/client/report.h"
#include "scheduler/client/run_on_pool.h"
#include "scheduler/client/send_data.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {
namespace {

namespace fs = std::filesystem;

struct TrainOptions {
  ExperimentArguments experiment;
  RecipeArguments recipe;
  std::string out, resume, dashboard;
  uint32_t nodes = 1;
  std::vector<std::string> owners;  // files
  std::optional<uint32_t> threads;
  std::string trace;  // file
  uint32_t trace_steps = 50;
  bool json = false;
};

// The file of --trace. It is written as soon as all that belongs into it has come.
class TraceFile {
 public:
  TraceFile(fs::path file, Reporter& reporter) : file_(std::move(file)), reporter_(reporter) {}

  void add(const nlohmann::json& event) {
    if (is_written_ || event.value("event", "") != "trace") return;
    trace_.add(event);
    if (!trace_.is_complete()) return;
    trace_.write(file_);
    is_written_ = true;
    reporter_.note(trace_note(trace_, file_));
  }

 private:
  const fs::path file_;
  Reporter& reporter_;
  ChromeTrace trace_;
  bool is_written_ = false;
};

// A run, and where its files are on this machine.
struct PlacedRun {
  Submission submission;
  fs::path out;         // its folder
  fs::path resume;      // a checkpoint to continue from, or empty
  fs::path trace = {};  // a file for a trace, or empty
  std::vector<fs::path> owners = {};  // a file of each owner; empty: the data is not private
  uint32_t trace_steps = 0;
};

// What a checkpoint of the run takes at least.
uint64_t checkpoint_bytes(const Submission& run) {
  const uint64_t of_parameter = run.experiment.model.precision == Precision::kBf16 ? 2 : 4;
  uint64_t bytes = 0;
  for (const ModeletSpec& modelet : partition_model(run.experiment, run.shape))
    bytes += modelet.parameters() * of_parameter;
  return bytes;
}

void train_here(const PlacedRun& run, Reporter& reporter) {
  const Submission& submission = run.submission;
  agent::TrainJob job = agent::job_of_one_node(submission.name, submission.experiment, submission.shape);
  job.out = run.out;
  job.resume = run.resume;
  agent::LocalRun local(std::move(job));
  TraceFile trace(run.trace, reporter);
  if (!run.trace.empty()) local.request_trace(run.trace_steps);
  std::atomic<bool> learns{false};
  const StopSignals signals([&local, &learns] {
    if (!learns) end_from_signal("\nstopped before the first step: there is nothing to save\n");
    local.request_stop();
    write_from_signal(kStoppingLine);
  });
  try {
    local.run([&](const nlohmann::json& event) {
      learns = true;
      trace.add(event);
      reporter.handle(event);
      if (!reporter.failure().empty()) local.request_stop();
    });
  } catch (const Interrupted&) {
    reporter.require_success();
    throw;  // the trainer has reported it already
  } catch (const Error& error) {
    reporter.handle({{"event", "failed"}, {"error", error.what()}});
    const std::string first = reporter.failure().empty() ? "" : reporter.failure() + "; ";
    const std::string why = first + error.what() + reporter.how_to_resume();
    if (error.exit_code() == ExitCode::kUsage) throw UsageError(why);
    throw Error(why);
  }
  reporter.require_success();
}

// Trains on a pool of processes. The pool keeps the files of the run, so that the run outlives a node, and
// this process copies them into the run's folder.
void train_on_pool(PlacedRun run, Reporter& reporter) {
  Submission& submission = run.submission;
  std::atomic<bool> stop{false};
  const StopSignals signals([&stop] {
    stop = true;
    write_from_signal(kStoppingLine);
  });
  constexpr uint64_t kFiles = 100, kFilesOfNode = 8;  // of the scheduler, which has connections to all
  require_descriptors(kFiles + kFilesOfNode * submission.nodes,
                      fmt::format("--nodes {}: the scheduler", submission.nodes));
  std::optional<RunFolder> folder(std::in_place, run.out, run.resume);
  const auto check = [&stop] {
    if (stop) throw Interrupted("stopped before the first step");
  };
  reporter.note(fmt::format("starting a scheduler and {} agents on this machine", submission.nodes));
  std::optional<LocalPool> pool_here(std::in_place,
                                     LocalPoolOptions{.nodes = submission.nodes,
                                                      .threads = submission.experiment.train.threads,
                                                      .owners = run.owners,
                                                      .files = run.out / ".pool",
                                                      .check = check});
  LocalPool& pool = *pool_here;
  const auto server = [&] {
    return comm::control::with_port(pool.scheduler(), PoolClient(pool.scheduler(), check).data_port());
  };
  send_start(server(), run.resume, submission, nullptr, 2, check);
  run_on_pool(pool.scheduler(),
              {.submission = submission,
               .out = run.out,
               .own_store = pool.store(),
               .keep_store = [&] { return pool.keep_files(run.out / "kept-pool"); },
               .check = [&pool] { pool.check(); }},
              reporter, stop);
  if (tower_tasks(submission.experiment.model) == 1) return;
  pool_here.reset();
  folder.reset();
  assemble_towers(
      submission, run.out, [&](const nlohmann::json& event) { reporter.handle(event); },
      [&] { return stop.load(); });
  reporter.require_success();
}

// The experiment in a file, unchanged.
ChosenExperiment experiment_in_file(const TrainOptions& options) {
  const std::string& file = options.experiment.file;
  try {
    const Experiment experiment = options.experiment.load();
    return {experiment, to_toml(experiment)};
  } catch (const UsageError& error) {
    if (fs::path(file).extension() == ".toml") throw;
    throw UsageError(fmt::format(
        "{}\nIf {} is training data, name test data as well: modelet train {} TEST. If it is a table, name the column "
        "of the labels: modelet train {} --target COLUMN",
        error.what(), file, file, file));
  }
}

// The experiment and the text for its record: from a file, or chosen for the data. `folder`: of the run.
ChosenExperiment experiment_of(const TrainOptions& options, const fs::path& folder, Reporter& reporter) {
  if (!options.recipe.used()) return experiment_in_file(options);
  if (!options.resume.empty())
    throw UsageError(
        "--resume " + options.resume +
        ": a run goes on as it was chosen: give its own file, modelet train RUN/experiment.toml --resume RUN");
  if (!options.recipe.time_budget.empty() && options.nodes > 1)
    throw UsageError("--time-budget is measured in this process: leave out --nodes " +
                     std::to_string(options.nodes) + ", or set model.hidden and train.epochs instead");
  return options.recipe.make(options.experiment, folder / "data", options.nodes, reporter);
}

uint32_t owners_of_round(const Experiment& experiment) {
  const Experiment::Cluster& cluster = experiment.cluster;
  return cluster.owners_per_round == 0 ? cluster.replicas : std::min(cluster.owners_per_round, cluster.replicas);
}

// The steps of several owners are one of a batch as many times as large, whose gradients have less noise by the root of
// their number. The more owners, the smaller their batches, and the rarer are rounds. And many owners have none of a rare
// label's samples: their gradients push its row away, and are small, but Adam makes its steps of them as large as those of
// owners that have samples, unless epsilon is larger. All three were chosen on held-out samples, of 4 and 16 owners
// (docs/studies/private-data.md). What the command line gives stays as it is. A run that goes on from `resume` keeps what it
// has, also if the file of the experiment is the one in its folder, which has the higher rate.
void choose_for_owners(const TrainOptions& options, const fs::path& resume, Experiment& experiment, Reporter& reporter) {
  constexpr uint32_t kStepsPerOwner = 4, kManyOwners = 16;
  constexpr float kEpsilon = 1e-3f, kRounding = 1e-5f;
  const auto is_open = [&](const std::string& key) {
    return std::ranges::none_of(options.experiment.overrides, [&](const std::string& setting) {
      return setting.substr(0, setting.find_first_of("= ")) == key;
    });
  };
  const uint32_t owners = owners_of_round(experiment);
  float raised = experiment.train.learning_rate * std::sqrt(static_cast<float>(owners));
  uint32_t local_steps = std::max(experiment.exchange.local_steps, kStepsPerOwner * owners);
  float epsilon = experiment.optimizer.epsilon;
  if (owners >= kManyOwners) epsilon = std::max(epsilon, kEpsilon);
  if (!resume.empty()) {
    const Experiment before = shard::Checkpoint::open(resume).index().experiment;
    if (!(std::abs(before.train.learning_rate - raised) <= kRounding * raised)) raised = experiment.train.learning_rate;
    local_steps = before.exchange.local_steps;
    epsilon = before.optimizer.epsilon;
  }
  if (is_open("train.learning_rate") && raised != experiment.train.learning_rate) {
    experiment.train.learning_rate = raised;
    reporter.note(fmt::format("learning rate {:.3g}: that of the experiment times the root of {} owners in a round; --set "
                              "train.learning_rate=RATE chooses another",
                              raised, owners));
  }
  if (is_open("exchange.local_steps") && local_steps != experiment.exchange.local_steps) {
    experiment.exchange.local_steps = local_steps;
    reporter.note(fmt::format("a round after {} steps; --set exchange.local_steps=STEPS chooses another number", local_steps));
  }
  if (experiment.optimizer.kind == OptimizerKind::kAdam && is_open("optimizer.epsilon") && epsilon != experiment.optimizer.epsilon) {
    experiment.optimizer.epsilon = epsilon;
    reporter.note(fmt::format("optimizer.epsilon {:.3g}, so that owners without samples of a label move it little; --set "
                              "optimizer.epsilon=NUMBER chooses another",
                              epsilon));
  }
}

// The owners' data, which this process may see because all owners are its user. Only the numbers of samples are used, to
// make an epoch as long as it takes to see them all once.
void count_steps_of_epoch(Experiment& experiment, const std::vector<fs::path>& owners, Reporter& reporter) {
  const Experiment::Data& data = experiment.data;
  const auto test = agent::load_public_test(data.test, data.normalize, report_preparing(reporter, data.test));
  uint64_t rows = 0;
  for (const fs::path& file : owners) {
    const auto own =
        shard::load_dataset(file, data.normalize, test.encoder(), shard::no_labels(), report_preparing(reporter, file.string()));
    if (own.features() != test.features() || own.labels() != test.labels())
      throw UsageError(fmt::format("{}: has {} features and {} labels, data.test {} and {}: all owners and the test data "
                                   "must count the same ids; correct the headers",
                                   file.string(), own.features(), own.labels(), test.features(), test.labels()));
    rows += own.rows();
  }
  reporter.clear_progress();
  const uint64_t of_step = uint64_t{experiment.train.batch} * owners_of_round(experiment);
  if (experiment.cluster.epoch_steps == 0)
    experiment.cluster.epoch_steps = static_cast<uint32_t>((rows + of_step - 1) / of_step);
}

// Makes the run one of private data, with an agent for each owner.
void set_owners(TrainOptions& options, PlacedRun& run) {
  if (options.nodes > 1) throw UsageError("--owners: each owner is a node: leave --nodes out");
  if (options.recipe.used())
    throw UsageError("--owners: keys are not chosen for private data: give an experiment file that says them");
  if (options.owners.size() < 2) throw UsageError("--owners: give at least two files, FILE,FILE");
  for (const std::string& file : options.owners) {
    if (!fs::is_regular_file(file)) throw UsageError("--owners " + file + ": there is no such file");
    run.owners.emplace_back(absolute(file));
  }
  std::vector<std::string>& overrides = options.experiment.overrides;
  overrides.push_back(fmt::format("data.train={}{}", kPrivatePrefix, LocalPool::kOwners));
  overrides.push_back(fmt::format("cluster.replicas={}", options.owners.size()));
  options.nodes = run.submission.nodes = static_cast<uint32_t>(options.owners.size());
}

void train(TrainOptions options) {
  PlacedRun run{.submission = {.nodes = options.nodes}, .out = {}, .resume = {}};
  Submission& submission = run.submission;
  if (!options.owners.empty()) set_owners(options, run);
  submission.name = options.recipe.run_name(options.experiment);
  if (!options.resume.empty()) run.resume = agent::TowerRun::start_of(absolute(options.resume));
  const RunPlace place(options.out, run.resume, submission.name);
  run.out = place.path();
  if (!options.trace.empty()) run.trace = absolute(options.trace);
  run.trace_steps = options.trace_steps;
  shard::require_one_run(run.out, run.resume);
  require_room(run.out, 0);
  Reporter reporter(options.json);
  std::optional<RunDashboard> dashboard;
  if (!options.dashboard.empty()) {
    dashboard.emplace(submission.name, options.dashboard);
    reporter.pass_to([&dashboard](const nlohmann::json& event) { dashboard->view().add(event); });
    reporter.note("page of the run: " + dashboard->url());
  }
  ChosenExperiment chosen = experiment_of(options, run.out, reporter);
  if (!run.owners.empty()) {
    count_steps_of_epoch(chosen.experiment, run.owners, reporter);
    choose_for_owners(options, run.resume, chosen.experiment, reporter);
    chosen.text = to_toml(chosen.experiment);
  }
  submission.experiment = chosen.experiment;
  if (!options.trace.empty() && options.nodes > 1)
    throw UsageError(fmt::format("--trace is for one process: leave --nodes {} out, or trace a run of a pool with modelet trace", options.nodes));
  if (const uint32_t replicas = submission.experiment.cluster.replicas; options.nodes % replicas != 0)
    throw UsageError(fmt::format("cluster.replicas is {}: --nodes must be a multiple of it", replicas));
  reporter.record_in(run.out, chosen.text, submission.experiment.data.labels);
  reporter.note("run folder: " + run.out.string());
  if (const fs::path tuned = tuned_file(options.experiment.file); !options.recipe.used() && fs::exists(tuned))
    reporter.note("hash tables as measured by modelet tune: " + tuned.string());
  submission.shape = load_data(submission.experiment, reporter).shape;
  require_room(run.out, checkpoint_bytes(submission));
  if (dashboard) {
    dashboard->view().set_experiment(chosen.text);
    if (options.nodes == 1)
      dashboard->view().set_placement(partition_model(submission.experiment, submission.shape).size(),
                                      checkpoint_bytes(submission));
  }
  if (options.nodes == 1)
    train_here(run, reporter);
  else
    train_on_pool(std::move(run), reporter);
}

}  // namespace

void add_train_verb(CLI::App& app) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App& verb = *app.add_subcommand("train", "Train an experiment on this machine");
  options->experiment.add_to(verb);
  options->recipe.add_to(verb);
  verb.add_option("--nodes", options->nodes,
                  "1: in this process; more: a scheduler and that many agents, as processes of their own")
      ->check(CLI::Range(1u, 256u))
      ->capture_default_str();
  verb.add_option("--owners", options->owners,
                  "FILE,FILE,...: in place of data.train, the training data of several owners: an agent for each, which "
                  "alone reads its file (docs/privacy.md)")
      ->delimiter(',');
  verb.add_option("--threads", options->threads,
                  "train.threads: of each node; 0: all cores that this process may use, shared by the nodes")
      ->check(CLI::Range(0u, 1024u));
  verb.add_option("--out", options->out, "folder of the run (default: runs/NAME-TIME)");
  verb.add_option("--resume", options->resume, "run folder or checkpoint to continue from");
  verb.add_flag(fmt::format("--dashboard{{{}}}", kDashboardAddress), options->dashboard,
                "show the run on a page, whose address is printed; --dashboard=ADDRESS:PORT listens there");
  verb.add_option(
      "--trace", options->trace,
      "write where the time of the first steps goes to this file, without --nodes, which Perfetto and chrome://tracing open");
  verb.add_option("--trace-steps", options->trace_steps, "how many steps")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  verb.add_flag("--json", options->json, "JSON Lines on standard output; the last line is the result");
  verb.footer(
      "Ctrl-C, or closing the terminal, stops at the next step and writes a checkpoint; a second Ctrl-C ends "
      "at\n"
      "once, without.\n"
      "Examples:\n"
      "  modelet train experiments/quickstart.toml\n"
      "  modelet train orders.csv --target product\n"
      "  modelet train my-train.txt.xz my-test.txt.xz\n"
      "  modelet train my-train.txt.xz my-test.txt.xz --time-budget 5m --set model.loss=softmax\n"
      "  modelet train experiments/quickstart.toml --nodes 4 --set exchange.codec=int8\n"
      "  modelet train experiments/quickstart.toml --dashboard\n"
      "  modelet train experiments/quickstart.toml --nodes 4 --set cluster.replicas=2\n"
      "  modelet train experiments/quickstart.toml --owners clinic-a.txt,clinic-b.txt,clinic-c.txt\n"
      "  modelet train experiments/debian-deps.toml --set train.epochs=2 --json\n"
      "  modelet train experiments/quickstart.toml --trace steps.json\n"
      "  modelet train experiments/quickstart.toml --resume runs/quickstart-20260101-120000");
  verb.callback([options] {
    if (options->threads)
      options->experiment.overrides.push_back(fmt::format("train.threads={}", *options->threads));
    train(*options);
  });
}

}  // namespace modelet::cli
