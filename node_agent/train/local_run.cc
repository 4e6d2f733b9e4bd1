#include "node_agent/train/local_run.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/experiment/towers.h"
#include "comm/collectives/group.h"
#include "node_agent/train/data/tower_samples.h"
#include "node_agent/train/towers.h"

namespace modelet::agent {

using nlohmann::json;

LocalRun::LocalRun(TrainJob job) : job_(std::move(job)) {}
LocalRun::~LocalRun() = default;

void LocalRun::run(const EventSink& events) {
  if (tower_tasks(job_.experiment.model) > 1) return train_towers(events);
  Trainer& trainer = next_trainer(job_);
  trainer.prepare();
  trainer.run(*comm::make_solo_group(), events);
}

void LocalRun::request_stop() {
  stop_requested_ = true;
  if (Trainer* const trainer = current_) trainer->request_stop();
}

void LocalRun::request_trace(uint32_t steps) { trace_steps_ = steps; }

Trainer& LocalRun::next_trainer(TrainJob job) {
  trainers_.push_back(std::make_unique<Trainer>(std::move(job)));
  current_ = trainers_.back().get();
  if (stop_requested_) trainers_.back()->request_stop();
  if (const uint32_t steps = trace_steps_.exchange(0); steps > 0) trainers_.back()->request_trace(steps);
  return *trainers_.back();
}

void LocalRun::train_towers(const EventSink& events) {
  const unsigned threads = thread_count(job_);
  ThreadPool pool(threads, job_.throttle);
  TowerRun towers(job_, pool);
  const uint32_t tasks = towers.division().tasks();
  uint64_t parameters = 0;
  for (uint32_t task = 0; task < tasks; ++task) {
    const TrainJob job = towers.job(task);
    for (const ModeletSpec& spec : partition_model(job.experiment, job.shape))
      parameters += spec.parameters();
  }
  events({{"event", "started"},
          {"run", job_.run},
          {"epochs", job_.experiment.train.epochs},
          {"towers", tasks},
          {"parameters", parameters},
          {"nodes", 1},
          {"threads", threads},
          {"features", job_.shape.features},
          {"labels", job_.shape.labels},
          {"train_rows", job_.shape.train_rows}});
  for (uint32_t task = 0; task < tasks; ++task)
    if (!towers.finished(task)) towers.set_finished(task, train_tower(towers, task, events));
  towers.finish(events, [this] { return stop_requested_.load(); });
}

// Returns its last event. What the events of its run say of the run, they say here of the whole.
json LocalRun::train_tower(const TowerRun& towers, uint32_t task, const EventSink& events) {
  const TrainJob job = towers.job(task);
  const TowerSamples samples(job, towers.division().spread(task), task);
  TrainJob with_samples = job;
  with_samples.samples = &samples;
  const uint32_t tasks = towers.division().tasks();
  json last;
  const auto pass_on = [&](json event) {
    const std::string kind = event.at("event");
    event["tower"] = task + 1;
    event["towers"] = tasks;
    if (kind == "started" || kind == "finished") event["event"] = "tower_" + kind;
    if (kind == "finished") {
      event["labels"] = job.shape.labels;
      last = event;
    }
    if (kind == "checkpoint") event["path"] = job_.out.string();
    if (kind == "interrupted") event["checkpoint"] = job_.out.string();
    if (kind == "progress") {
      const double left = event.at("eta_seconds"), done = event.at("train_seconds");
      const double of_tower = task == 0 ? done + left : seconds_of_towers_ / task;
      event["eta_seconds"] = left + of_tower * (tasks - task - 1);
    }
    events(event);
  };
  Trainer& trainer = next_trainer(std::move(with_samples));
  try {
    trainer.prepare();
    trainer.run(*comm::make_solo_group(), pass_on);
  } catch (const Interrupted&) {
    throw Interrupted("stopped in tower " + std::to_string(task + 1) + " of " + std::to_string(tasks) +
                      "; continue with --resume " + job_.out.string());
  }
  seconds_of_towers_ += last.at("train_seconds").get<double>();
  return last;
}

}  // namespace modelet::agent
