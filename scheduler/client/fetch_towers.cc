#include "scheduler/client/fetch_towers.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/parallel/thread_pool.h"
#include "node_agent/train/towers.h"
#include "node_agent/train/train.h"
#include "shard/data/store/label_division.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The last event of a task that has finished.
json finish_of(PoolClient& client, uint64_t run) {
  const std::vector<json> events = client.past_events(run);
  const auto last = std::ranges::find_if(events.rbegin(), events.rend(), [](const json& event) {
    return event.value("event", json()) == "finished";
  });
  if (last == events.rend()) throw Error(fmt::format("the scheduler has no last event of run {}", run));
  return *last;
}

}  // namespace

std::optional<size_t> fetch_towers(const comm::control::SchedulerAddress& scheduler, uint64_t run,
                                   const fs::path& folder, const FetchOptions& options) {
  PoolClient client(scheduler, options.check);
  const comm::control::RunFilesT files = client.files(run);
  if (files.tasks.empty()) return std::nullopt;
  const fs::path towers = folder / shard::kTowersFolder;
  fs::create_directories(towers);
  if (const fs::path division = towers / shard::LabelDivision::kFile; !fs::exists(division))
    fetch_file(scheduler, files.division, division, options);
  FetchOptions of_task = options;
  of_task.newest = 1;
  of_task.arrived = {};
  const uint32_t epochs = parse_experiment(files.experiment, "the run's experiment").train.epochs;
  for (uint32_t task = 0; task < files.tasks.size(); ++task) {
    const uint64_t result = files.tasks[task];
    if (result == 0) continue;
    const fs::path place = agent::folder_of_task(folder, task);
    if (fetch_checkpoints(scheduler, result, place, of_task).empty())
      throw Error(fmt::format("run {}, task {} of run {}, has no checkpoint in the scheduler's store", result,
                              task, run));
    agent::set_finished(place, epochs, finish_of(client, result));
  }
  return static_cast<size_t>(std::ranges::count(files.tasks, uint64_t{0}));
}

void assemble_towers(const Submission& submission, const fs::path& folder, const agent::EventSink& events,
                     const std::function<bool()>& stop) {
  agent::TrainJob job = agent::job_of_one_node(submission.name, submission.experiment, submission.shape);
  job.out = folder;
  job.resume = agent::TowerRun::start_of(folder);
  ThreadPool pool(agent::thread_count(job));
  agent::TowerRun(job, pool).finish(events, stop);
}

}  // namespace modelet::cli
