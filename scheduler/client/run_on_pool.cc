#include "scheduler/client/run_on_pool.h"

#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "scheduler/client/fetch_run.h"
#include "scheduler/client/fetch_towers.h"
#include "scheduler/client/run_fetcher.h"
#include "scheduler/core/core.h"
#include "shard/modelet/checkpoint/folders.h"

namespace modelet::cli {
namespace {

using comm::control::RunState;
using comm::control::RunStatusT;
using nlohmann::json;

// Seconds. A scheduler sends a status every second, and answers at once when it is asked to stop a run. It is
// away if both are missing, or if it has answered and then is silent for long.
constexpr double kStopSeconds = 1, kMissedStatus = 2, kLongestSilence = 4;
constexpr double kFetchAgain = 2;  // seconds
constexpr std::chrono::milliseconds kLook{50};

std::string text_in(const json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Reports how a run ended, unless an event of the run has said so already.
class EndReporter {
 public:
  explicit EndReporter(Reporter& reporter) : reporter_(reporter) {}

  void handle(const json& event) {
    last_ = text_in(event, "event");
    reporter_.handle(event);
  }

  void say(const std::string& what) { reporter_.note(what); }
  bool failed() const { return !reporter_.failure().empty(); }

  // Reports what a waiting run waits for, once for each reason, and how far a run of tasks is.
  void note(const RunStatusT& status) {
    if (status.tasks > 0 && status.state == RunState::Running)
      reporter_.show_tasks(status.tasks_done, status.tasks_at_work, status.tasks, status.seconds_left);
    const bool waits = status.state == RunState::Queued || status.state == RunState::Waiting ||
                       status.state == RunState::Recovering;
    if (!waits || status.detail == waiting_for_) return;
    waiting_for_ = status.detail;
    reporter_.note(fmt::format("run {} {}", status.run, status.detail));
  }

  [[noreturn]] void fail(const std::string& error) {
    reporter_.handle({{"event", "failed"}, {"error", error}});
    throw Error(error + reporter_.how_to_resume());
  }

  // `checkpoints` is the folder of its checkpoints on this machine; empty: there is none.
  void end(const RunStatusT& status, const std::filesystem::path& checkpoints = {}) {
    if (status.state == RunState::Failed) {
      if (last_ != "failed") reporter_.handle({{"event", "failed"}, {"error", status.detail}});
      const std::string why =
          fmt::format("run {} failed: {}{}", status.run, status.detail, reporter_.how_to_resume());
      if (status.user_error) throw UsageError(why);
      throw Error(why);
    }
    if (status.state == RunState::Stopped) {
      const std::filesystem::path towers =
          status.tasks > 0 ? checkpoints.parent_path() : std::filesystem::path();
      if (last_ != "interrupted")
        reporter_.handle(towers.empty()
                             ? interrupted(status.step, checkpoints)
                             : json{{"event", "interrupted"}, {"step", 0}, {"checkpoint", towers.string()}});
      reporter_.require_success();
      throw Interrupted(fmt::format("run {}: {}{}", status.run, status.detail,
                                    towers.empty()
                                        ? reporter_.how_to_resume()
                                        : "; continue in one process, with --resume " + towers.string()));
    }
    reporter_.require_success();
    if (status.tasks > 0 && checkpoints.empty())
      reporter_.note(
          fmt::format("run {} has finished: {} {} --out FOLDER brings its towers and makes one model of them",
                      status.run, kFetch, status.run));
  }

 private:
  // The event for a run that was stopped while its nodes could not report that.
  static json interrupted(uint64_t step, const std::filesystem::path& checkpoints) {
    json event = {{"event", "interrupted"}, {"step", step}};
    if (const auto newest = shard::newest_checkpoint(checkpoints)) event["checkpoint"] = newest->string();
    return event;
  }

  Reporter& reporter_;
  std::string last_, waiting_for_;
};

// Passes the events of a run whose files are fetched on to the reporter. Events that name a checkpoint get
// the path in the client's folder, and wait until the checkpoint is there.
class FetchedRun {
 public:
  FetchedRun(const comm::control::SchedulerAddress& scheduler, uint64_t id, const RunOnPool& run,
             EndReporter& reporter, const std::atomic<bool>& stop)
      : scheduler_(scheduler),
        run_(id),
        folder_(run.out),
        newest_(run.submission.experiment.train.keep_checkpoints),
        options_(run),
        reporter_(reporter),
        stop_(stop),
        fetcher_(std::in_place, scheduler, id, folder_, newest_, run.own_store) {}

  void handle(json event) {
    for (const char* key : {"path", "checkpoint"})
      if (const std::string path = text_in(event, key); !path.empty())
        event[key] = fetched_path(folder_, path).string();
    const std::string kind = text_in(event, "event");
    if (kind == "checkpoint") {
      const std::string path = text_in(event, "path");
      // A group that continues from an earlier step makes the same checkpoint again.
      std::erase_if(waiting_, [&](const json& before) { return text_in(before, "path") == path; });
      fetcher_->look(path);
      waiting_.push_back(std::move(event));
    } else if (kind == "finished" || kind == "interrupted" || kind == "failed") {
      last_ = std::move(event);
    } else {
      reporter_.handle(event);
    }
  }

  // Reports the waiting events whose checkpoint has arrived.
  void report_arrived() {
    report_if([this](const std::filesystem::path& path) { return fetcher_->has(path); });
  }

  std::filesystem::path checkpoints() const { return folder_ / "checkpoints"; }

  // The run has ended: fetches what has not arrived yet. A checkpoint that the pool has replaced by a later
  // one is never reported.
  void end() {
    report_arrived();
    fetcher_.reset();
    std::string trouble;
    try {
      fetch_all();
    } catch (const std::exception& error) {
      trouble = fmt::format("run {} has ended, but its last files are not here yet: {}", run_, error.what());
    }
    report_if([this](const std::filesystem::path& path) { return arrived_.contains(path); });
    if (!trouble.empty() && has_own_pool())
      reporter_.fail(fmt::format(
          "{}; start modelet-scheduler --insecure --state {}, which has them (meanwhile every user of this machine "
          "can reach it), and modelet fetch {} --insecure --out {} brings them",
          trouble, options_.keep_store().string(), run_, folder_.string()));
    if (!trouble.empty())
      throw Error(fmt::format("{}; modelet fetch {} --out {} brings them", trouble, run_, folder_.string()));
    if (last_) reporter_.handle(*last_);
  }

 private:
  bool has_own_pool() const { return !options_.own_store.empty(); }

  // Reports waiting events whose checkpoint is here, in the order in which they came.
  template <class IsHere>
  void report_if(const IsHere& is_here) {
    std::erase_if(waiting_, [&](const json& event) {
      const bool here = is_here(std::filesystem::path(text_in(event, "path")));
      if (here) reporter_.handle(event);
      return here;
    });
  }

  // Fetches the checkpoints. Tries once more because the scheduler may just have gone away, and for longer if
  // there will be no other time: an own pool ends now, and this disk may be full. A stop ends that. A run that was
  // stopped before is fetched all the same, but once only.
  void fetch_all() {
    const auto check = [this, stopped = stop_.load()] {
      if (stop_ && !stopped) throw Interrupted("the fetching was stopped");
    };
    const FetchOptions options{
        .check = check, .newest = newest_, .arrived = [this](const std::filesystem::path& path) {
          arrived_.insert(path);
        }};
    const Stopwatch watch;
    bool logged = false;
    for (bool again = true;; again = has_own_pool() && watch.seconds() < options_.patience) {
      try {
        if (!fetch_towers(scheduler_, run_, folder_, options))
          fetch_checkpoints(scheduler_, run_, folder_, options);
        return;
      } catch (const std::exception& error) {
        if (!again || stop_ || reporter_.failed()) throw;
        if (has_own_pool() && !std::exchange(logged, true))
          reporter_.say(fmt::format("tries again to place the last files of run {}: {}", run_, error.what()));
      }
      for (const Stopwatch rest; rest.seconds() < kFetchAgain; std::this_thread::sleep_for(kLook)) check();
      if (options_.check) options_.check();
    }
  }

  const comm::control::SchedulerAddress& scheduler_;
  const uint64_t run_;
  const std::filesystem::path folder_;
  const uint32_t newest_;
  const RunOnPool& options_;
  EndReporter& reporter_;
  const std::atomic<bool>& stop_;
  std::optional<RunFetcher> fetcher_;
  std::set<std::filesystem::path> arrived_;  // checkpoints that fetch_all() found
  std::deque<json> waiting_;
  std::optional<json> last_;
};

// A checkpoint that the pool keeps has no path on this machine: the event says how to bring it instead.
json with_way_to_fetch(json event, uint64_t run) {
  for (const char* key : {"path", "checkpoint"}) {
    const std::filesystem::path path = text_in(event, key);
    if (!path.empty() && !path.is_absolute()) event[key] = fmt::format("{} {} --out FOLDER", kFetch, run);
  }
  return event;
}

}  // namespace

void run_on_pool(const comm::control::SchedulerAddress& scheduler, const RunOnPool& run, Reporter& reporter,
                 const std::atomic<bool>& stop) {
  const uint64_t id = PoolClient(scheduler, [&] {
                        if (stop)
                          throw Interrupted(
                              "stopped while the scheduler was asked to take the run; it may have "
                              "done so: modelet list shows its runs");
                      }).submit(run.submission);
  PoolClient client(scheduler);
  if (run.own_store.empty()) reporter.handle({{"event", "submitted"}, {"run", id}});
  EndReporter end(reporter);
  std::optional<FetchedRun> files;
  if (!run.out.empty()) files.emplace(scheduler, id, run, end, stop);
  Stopwatch since_status;
  std::optional<Stopwatch> stopped;
  const PoolClient::Watcher watcher{
      .on_event = [&](const json& event) { files ? files->handle(event) : end.handle(event); },
      .on_status =
          [&](const RunStatusT& status) {
            since_status.lap();
            end.note(status);
          },
      .on_trouble = [&](const std::string& what) { reporter.note(what); },
      .stop = [&] { return stop || !reporter.failure().empty(); },
      .detach =
          [&] {
            if (run.check) run.check();
            if (stop && !stopped) stopped.emplace();
            const bool has_responded = stopped && since_status.seconds() < stopped->seconds();
            if (stopped && stopped->seconds() > kStopSeconds &&
                since_status.seconds() > (has_responded ? kLongestSilence : kMissedStatus))
              throw Interrupted(
                  run.own_store.empty()
                      ? fmt::format(
                            "the scheduler does not respond; run {} may go on: modelet stop {} ends it", id,
                            id)
                      : "stopped while the pool's scheduler was away");
            if (files) files->report_arrived();
            return false;
          },
      .whole = true};
  RunStatusT last;
  try {
    last = client.watch(id, watcher, run.patience);
  } catch (const Error& error) {
    if (run.own_store.empty()) throw;
    if (files) files->report_arrived();
    end.fail(error.what());
  }
  if (files) files->end();
  end.end(last, files ? files->checkpoints() : std::filesystem::path());
}

void watch_on_pool(const comm::control::SchedulerAddress& scheduler, uint64_t run, Reporter& reporter,
                   const std::atomic<bool>& stop, double patience) {
  const std::string goes_on =
      fmt::format("no longer watched; run {} goes on: modelet stop {} ends it", run, run);
  PoolClient client(scheduler, [&] {
    if (stop) throw Interrupted(goes_on);
  });
  EndReporter end(reporter);
  const RunStatusT last =
      client.watch(run,
                   {.on_event = [&](const json& event) { end.handle(with_way_to_fetch(event, run)); },
                    .on_status = [&](const RunStatusT& status) { end.note(status); },
                    .on_trouble = [&](const std::string& what) { reporter.note(what); },
                    .detach = [&] { return stop || !reporter.failure().empty(); }},
                   patience);
  if (scheduler::has_ended(last.state)) return end.end(last);
  if (!reporter.failure().empty()) throw Error(reporter.failure() + "; " + goes_on);
  throw Interrupted(goes_on);
}

}  // namespace modelet::cli
