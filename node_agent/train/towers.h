// TowerRun: the files of a run of towers (base/experiment/towers.h), and how one model comes of them.
//
//   RUN/towers/towers.safetensors     which labels each tower has
//   RUN/towers/003/checkpoints/...    the run of a task: that of one network
//   RUN/towers/003/finished.json      its last event, once it is done
//   RUN/checkpoints/step-...          the model. Then towers/ is removed
//
// Whoever trains the towers, in this process or on a pool, uses it. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "base/parallel/thread_pool.h"
#include "base/system/file.h"
#include "node_agent/train/job/train_job.h"
#include "shard/data/store/label_division.h"

namespace modelet::agent {

// What the towers of a job begin with.
struct TowersStart {
  shard::LabelDivision division;
  std::vector<std::filesystem::path> checkpoints;  // [tasks]; empty: that tower from the beginning
};
// `job.resume` is empty, as TowerRun::start_of() returned it, or a checkpoint of towers. UsageError if it has other
// towers than the job.
TowersStart start_of_towers(const TrainJob& job, ThreadPool& pool);

// The job of a task, of whose tower the whole job is known. `out`: its folder. It needs samples: TowerSamples.
TrainJob tower_job(const TrainJob& whole, const shard::LabelDivision::Part& part);

// The folder of a task's run in that of the whole run.
std::filesystem::path folder_of_task(const std::filesystem::path& run, uint32_t task);
// The task whose folder this is has been trained for so many epochs; `event` is its last one.
void set_finished(const std::filesystem::path& folder_of_task, uint32_t epochs, const nlohmann::json& event);

class TowerRun {
 public:
  // Takes the run's folder, `job.out`, and brings what the towers begin with (start_of_towers()). UsageError as for any
  // run. `job` and `pool` must outlive this object.
  TowerRun(const TrainJob& job, ThreadPool& pool);

  // What a run goes on from: `path` is as for find_checkpoint(), or the folder of a run whose towers are not all
  // trained, for which it returns its folder of towers.
  static std::filesystem::path start_of(const std::filesystem::path& path);

  const shard::LabelDivision& division() const { return division_; }
  std::filesystem::path folder(uint32_t task) const;  // of its run
  TrainJob job(uint32_t task) const;                  // ready to go on where it was left

  // The last event of a task's run, if it is done.
  std::optional<nlohmann::json> finished(uint32_t task) const;
  void set_finished(uint32_t task, const nlohmann::json& event) const;

  // When all tasks are done: writes the model and tests it. Reports "checkpoint" and "finished". `stop`: asked between
  // batches; true: throws Interrupted.
  void finish(const EventSink& events, const std::function<bool()>& stop);

 private:
  std::filesystem::path towers() const;
  shard::LabelDivision find_division();
  std::filesystem::path write_model() const;

  const TrainJob& job_;
  ThreadPool& pool_;
  const FileLock lock_;
  const shard::LabelDivision division_;
  std::vector<shard::LabelDivision::Part> parts_;  // [tasks]
};

}  // namespace modelet::agent
