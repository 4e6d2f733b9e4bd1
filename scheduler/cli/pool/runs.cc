#include "scheduler/cli/pool/runs.h"

#include <poll.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/system/log.h"
#include "base/system/process.h"
#include "base/text/printable.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/cli/options/output.h"
#include "scheduler/cli/pool/pool_options.h"
#include "scheduler/client/chrome_trace.h"
#include "scheduler/client/fetch_run.h"
#include "scheduler/client/fetch_towers.h"
#include "scheduler/client/pool_client.h"
#include "scheduler/client/run_on_pool.h"
#include "scheduler/core/core.h"
#include "scheduler/core/status_json.h"
#include "shard/modelet/checkpoint/folders.h"

namespace modelet::cli {
namespace {

using comm::control::RunStatusT;
using nlohmann::json;

constexpr int kLookAgain = 500;  // milliseconds

// "2026-11-25 16:40" of "2026-11-25T16:40:07Z".
std::string minute_of(const std::string& time) {
  constexpr size_t kDay = 10, kMinute = 16;
  if (time.size() < kMinute) return "";
  return time.substr(0, kDay) + ' ' + time.substr(kDay + 1, kMinute - kDay - 1);
}

std::string detail_text(const RunStatusT& run) {
  std::string text = run.detail;
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  if (run.queue_place > 0) add(fmt::format("place {} in the queue", run.queue_place));
  if (run.seconds_left > 0 && !scheduler::has_ended(run.state))
    add(fmt::format("about {:.0f} s left", run.seconds_left));
  if (!run.straggler.empty())
    add(fmt::format("slowest {} +{:.0f} %", run.straggler, 100 * run.straggler_excess));
  if (run.recoveries > 0) add(fmt::format("recovered {} times", run.recoveries));
  if (scheduler::has_ended(run.state) && run.stable_step > 0)
    add(fmt::format("modelet fetch {} --out FOLDER brings its files", run.run));
  if (run.replans > 0) add(fmt::format("re-planned {} times", run.replans));
  return text;
}

void list(const PoolOptions& options) {
  auto list = PoolClient(options.address()).list();
  if (list.forgets) log_warning("this scheduler keeps nothing: all runs end with it. Start it with --state to change that");
  // Tasks come below their run.
  std::ranges::stable_sort(list.runs, {},
                           [](const auto& run) { return run->parent == 0 ? run->run : run->parent; });
  if (options.json) {
    for (const auto& run : list.runs) print_line(scheduler::to_json(*run));
    return;
  }
  Table table({{"run", 9},
               {"name", 8, false, 10},
               {"user", 2, false},
               {"state", 7, false},
               {"step", 5},
               {"nodes", 4},
               {"seconds", 3},
               {"submitted", 1, false},
               {"on", 0, false, 12},
               {"detail", 6, false, 20}});
  for (const auto& run : list.runs)
    table.add(
        {std::to_string(run->run), run->name, run->submitter, scheduler::state_name(run->state),
         run->tasks == 0 ? std::to_string(run->step) : fmt::format("{}/{}", run->tasks_done, run->tasks),
         std::to_string(run->node_names.size()), fmt::format("{:.0f}", run->seconds),
         minute_of(run->submitted), fmt::format("{}", fmt::join(run->node_names, ", ")), detail_text(*run)});
  print(table);
}

void watch(const PoolOptions& options) {
  Reporter reporter(options.json);
  std::atomic<bool> stop{false};
  const StopSignals signals([&stop] { stop = true; });
  watch_on_pool(options.address(), options.run, reporter, stop, options.patience);
}

void stop(const PoolOptions& options) {
  const RunStatusT status = PoolClient(options.address()).stop(options.run);
  if (options.json) return print_line(scheduler::to_json(status));
  std::cout << fmt::format("run {} {}{}{}\n", status.run, scheduler::state_name(status.state),
                           status.detail.empty() ? "" : ": ", status.detail);
}

// The request goes over a connection of its own once this one watches: only those who watch get the events.
void trace(const PoolOptions& options) {
  Reporter reporter(options.json);
  std::atomic<bool> stop{false};
  const StopSignals signals([&stop] { stop = true; });
  const std::filesystem::path file = absolute(options.out.empty() ? fmt::format("run-{}.trace.json", options.run) : options.out);
  ChromeTrace trace;
  bool asked = false;
  const PoolClient::Watcher watcher{
      .on_event = [&](const json& event) { if (asked) trace.add(event); },
      .on_status =
          [&](const RunStatusT& status) {
            if (std::exchange(asked, true) || scheduler::has_ended(status.state)) return;
            PoolClient(options.address()).trace(options.run, options.steps);
            reporter.note(fmt::format("run {} traces its next {} steps", options.run, options.steps));
          },
      .on_trouble = [&](const std::string& what) { log_warning("{}", what); },
      .detach = [&] { return stop || trace.is_complete(); }};
  const RunStatusT last = PoolClient(options.address()).watch(options.run, watcher, options.patience);
  if (stop) throw Interrupted(fmt::format("no trace was written; run {} goes on", options.run));
  if (trace.ranks_heard() == 0)
    throw Error(fmt::format("run {} is {}, and only a run that trains has steps", options.run, scheduler::state_name(last.state)));
  trace.write(file);
  if (options.json)
    print_line(json{{"event", "traced"}, {"run", options.run}, {"file", file.string()}, {"ranks", trace.ranks_heard()}, {"steps", trace.steps()}, {"step_seconds", trace.step_seconds()}});
  else
    std::cout << trace_note(trace, file) << '\n';
}

// Lines of a log without characters that could control a terminal. The text of a log comes from others.
std::string printable_lines(std::string_view text) {
  std::string shown;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    shown += printable(text.substr(begin, end - begin));
    if (end < text.size()) shown += '\n';
    begin = end + 1;
  }
  return shown;
}

// Waits before a log is asked for more. If nobody reads the output any more, this ends the process as a
// write would: a log may have nothing to write for hours.
void wait_for_more() {
  pollfd output{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  if (::poll(&output, 1, kLookAgain) <= 0) return;
  ::raise(SIGPIPE);
  errno = EPIPE;  // the signal is ignored
  throw Error(errno_text("standard output"));
}

void logs(const PoolOptions& options) {
  PoolClient client(options.address());
  double patience = kResponseSeconds;  // for a scheduler that may never have been there
  for (uint64_t offset = 0;;) {
    const comm::control::RunLogT log = client.log(options.run, options.node, offset, patience);
    if (options.json) {
      if (!log.text.empty()) print_line(json{{"run", log.run}, {"node", options.node}, {"text", log.text}});
    } else {
      std::cout << printable_lines(log.text);
    }
    errno = 0;
    if (!std::cout.flush()) throw Error(errno_text("standard output"));
    const bool more = log.next > offset;
    offset = log.next;
    if (log.complete || (!more && !options.follow)) return;
    if (options.follow) patience = options.patience;
    if (!more) wait_for_more();
  }
}

// Of the towers in the folder of a run.
void make_model(const std::filesystem::path& folder, Reporter& reporter, const std::atomic<bool>& stop) {
  Submission submission{.experiment = load_experiment(folder / "experiment.toml")};
  submission.name = folder.filename();
  try {
    submission.shape = load_data(submission.experiment, reporter).shape;
  } catch (const Error& error) {
    throw Error(fmt::format(
        "{}; the towers of the run are in {}. Where its data is, modelet train {}/experiment.toml "
        "--resume {} makes one model of them",
        error.what(), folder.string(), folder.string(), folder.string()));
  }
  assemble_towers(
      submission, folder, [&](const json& event) { reporter.handle(event); }, [&] { return stop.load(); });
}

void fetch(const PoolOptions& options) {
  Reporter reporter(options.json);
  std::atomic<bool> stop{false};
  const StopSignals signals([&stop] { stop = true; });
  const std::filesystem::path out = absolute(options.out);
  const auto address = options.address();
  std::optional<RunFolder> folder(std::in_place, out);
  const auto check = [&] {
    if (stop)
      throw Interrupted(
          fmt::format("what has arrived of run {} is kept: the same command goes on with it", options.run));
  };
  fetch_record(address, options.run, out, check);
  const FetchOptions fetching{.report = [&](const json& event) { reporter.handle(event); }, .check = check};
  const bool has_model = shard::newest_checkpoint(out / "checkpoints").has_value();
  if (const auto missing = has_model ? std::nullopt : fetch_towers(address, options.run, out, fetching)) {
    if (*missing > 0)
      throw Error(fmt::format(
          "{} tasks of run {} are not done; {} has the towers of the others, and the same command "
          "brings more of them later",
          *missing, options.run, out.string()));
    folder.reset();
    make_model(out, reporter, stop);
  }
  auto paths = fetch_checkpoints(address, options.run, out, fetching);
  if (const auto model = shard::newest_checkpoint(out / "checkpoints"); paths.empty() && model)
    paths.push_back(*model);
  reporter.clear_progress();
  if (paths.empty())
    throw Error(fmt::format(
        "run {} has no checkpoint in the scheduler's store: {} has its experiment.toml and log.jsonl, but no "
        "weights; modelet watch {} shows how far it is",
        options.run, out.string(), options.run));
  if (options.json)
    print_line(json{{"event", "fetched"}, {"run", options.run}, {"checkpoint", paths.front().string()}});
  else
    std::cout << fmt::format("run {}: {} checkpoint(s) in {}, the newest is {}\n", options.run, paths.size(),
                             out.string(), paths.front().filename().string());
}

}  // namespace

void add_run_verbs(CLI::App& app) {
  add_verb(app, "list", "List the runs of a pool",
           "  modelet list --scheduler tcp://192.168.1.5:5570\n  modelet list --json",
           std::make_shared<PoolOptions>(), list);

  const auto watched = std::make_shared<PoolOptions>();
  CLI::App& watch_verb =
      add_verb(app, "watch", "Follow a run of a pool to its end; Ctrl-C stops watching, not the run",
               "  modelet watch 3\n  modelet watch 3 --json", watched, watch);
  add_run(watch_verb, *watched);
  add_patience(watch_verb, *watched);

  const auto stopped = std::make_shared<PoolOptions>();
  add_run(add_verb(app, "stop", "Stop a run of a pool at its next step, with a checkpoint",
                   "  modelet stop 3", stopped, stop),
          *stopped);

  const auto traced = std::make_shared<PoolOptions>();
  CLI::App& trace_verb = add_verb(
      app, "trace", "Write where the time of a run's next steps goes, on each node, as a file for Perfetto",
      "  modelet trace 3 --steps 50 --out steps.json             open it in ui.perfetto.dev or chrome://tracing",
      traced, trace);
  add_run(trace_verb, *traced);
  trace_verb.add_option("--steps", traced->steps, "how many steps")->capture_default_str()->check(CLI::Range(1, 1000));
  trace_verb.add_option("--out", traced->out, "the file (default: run-RUN.trace.json)");
  add_patience(trace_verb, *traced);

  const auto fetched = std::make_shared<PoolOptions>();
  CLI::App& fetch_verb = add_verb(
      app, "fetch",
      "Bring the checkpoints of a run that the pool keeps into a folder, as 'modelet train' writes it; again, "
      "it brings what has come since. Without a checkpoint it brings the experiment and the events, and fails",
      "  modelet fetch 3 --out runs/deps\n"
      "  modelet eval runs/deps test.txt.xz                       then works, as predict and --resume",
      fetched, fetch);
  add_run(fetch_verb, *fetched);
  fetch_verb.add_option("--out", fetched->out, "folder of the run, on this machine")->required();

  const auto logged = std::make_shared<PoolOptions>();
  CLI::App& logs_verb = add_verb(
      app, "logs", "Show the events of a run, or what one of its nodes has logged while it worked for it",
      "  modelet logs 3 --follow\n  modelet logs 3 office-17", logged, logs);
  add_run(logs_verb, *logged);
  logs_verb.add_option("node", logged->node, "name of a node (default: the run's events)");
  logs_verb.add_flag("--follow", logged->follow, "go on until the log is complete");
  add_patience(logs_verb, *logged);
}

}  // namespace modelet::cli
