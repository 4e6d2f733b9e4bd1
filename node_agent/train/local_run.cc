#include "node_agent/train/local_run.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/experiment/towers.h"
#include "comm/collectives/group.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/train/data/tower_samples.h"
#include "node_agent/train/towers.h"

namespace modelet::agent {

using nlohmann::json;

namespace {

// The share of the memory that towers at work may take together. Their samples and buffers come on top.
constexpr double kMemoryForTowers = 0.5;

uint64_t bytes_of_tower(const TrainJob& job) {
  uint64_t bytes = 0;
  for (const ModeletSpec& modelet : partition_model(job.experiment, job.shape))
    bytes += modelet_bytes(modelet, job.experiment) + pair_bytes(modelet, job.experiment, job.shape);
  return bytes;
}

}  // namespace

LocalRun::LocalRun(TrainJob job)
    : job_(std::move(job)),
      trainers_(tower_tasks(job_.experiment.model)),
      to_stop_(tower_tasks(job_.experiment.model)) {}
LocalRun::~LocalRun() = default;

void LocalRun::request_stop() {
  stop_requested_ = true;
  for (const std::atomic<Trainer*>& trainer : to_stop_)
    if (Trainer* const at_work = trainer) at_work->request_stop();
}

void LocalRun::request_trace(uint32_t steps) { trace_steps_ = steps; }

Trainer& LocalRun::make_trainer(uint32_t task, TrainJob job) {
  trainers_[task] = std::make_unique<Trainer>(std::move(job));
  Trainer& trainer = *trainers_[task];
  to_stop_[task] = &trainer;
  if (stop_requested_) trainer.request_stop();
  if (const uint32_t steps = trace_steps_.exchange(0); steps > 0) trainer.request_trace(steps);
  return trainer;
}

// The training of all towers of a run. Each worker takes the next tower when it is free.
class LocalRun::Towers {
 public:
  Towers(LocalRun& run, TowerRun& towers, unsigned threads, const EventSink& events)
      : run_(run),
        towers_(towers),
        events_(events),
        tasks_(towers.division().tasks()),
        workers_(at_once(threads)),
        threads_(std::max(1u, threads / workers_)) {}

  void train() {
    {
      std::vector<std::jthread> others;
      for (uint32_t worker = 1; worker < workers_; ++worker) others.emplace_back([this] { work(); });
      work();
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  uint32_t at_once(unsigned threads) const {
    uint64_t largest = 1;
    uint32_t left = 0;
    for (uint32_t task = 0; task < tasks_; ++task) {
      if (towers_.finished(task)) continue;
      ++left;
      largest = std::max(largest, bytes_of_tower(towers_.job(task)));
    }
    const auto memory = usable_memory();
    const double room = memory ? kMemoryForTowers * static_cast<double>(memory->bytes) : 0;
    const double most = std::min<double>({room / static_cast<double>(largest), 1.0 * threads, 1.0 * left});
    return std::max(1u, static_cast<uint32_t>(most));
  }

  // The first failure stops the others: nothing is lost, because towers go on with --resume.
  void work() {
    try {
      for (uint32_t task = next_++; task < tasks_; task = next_++)
        if (!towers_.finished(task)) towers_.set_finished(task, train(task));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      run_.request_stop();
    }
  }

  // Returns its last event.
  json train(uint32_t task) {
    TrainJob job = towers_.job(task);
    job.threads = threads_;
    const TowerSamples samples(job, towers_.division().spread(task), task);
    TrainJob with_samples = job;
    with_samples.samples = &samples;
    {
      const std::lock_guard lock(mutex_);
      at_work_.insert(task);
    }
    json last;
    Trainer& trainer = run_.make_trainer(task, std::move(with_samples));
    try {
      trainer.prepare();
      trainer.run(*comm::make_solo_group(), [&](json event) {
        const std::lock_guard lock(mutex_);
        if (event.at("event") == "finished") {
          event["labels"] = job.shape.labels;
          last = event;
        }
        pass_on(task, std::move(event));
      });
    } catch (const Interrupted&) {
      throw Interrupted("stopped in tower " + std::to_string(task + 1) + " of " + std::to_string(tasks_) +
                        "; continue with --resume " + run_.job_.out.string());
    }
    const std::lock_guard lock(mutex_);
    at_work_.erase(task);
    seconds_ += last.at("train_seconds").get<double>();
    ++trained_;
    return last;
  }

  // What the events of a tower's run say of the run, they say here of the whole. Of several towers at work, the first
  // one reports its progress.
  void pass_on(uint32_t task, json event) {
    const std::string kind = event.at("event");
    if (kind == "progress" && task != *at_work_.begin()) return;
    if (kind == "interrupted" && std::exchange(said_interrupted_, true)) return;
    event["tower"] = task + 1;
    event["towers"] = tasks_;
    if (kind == "started" || kind == "finished") event["event"] = "tower_" + kind;
    if (kind == "checkpoint") event["path"] = run_.job_.out.string();
    if (kind == "interrupted") event["checkpoint"] = run_.job_.out.string();
    if (kind == "progress") {
      const double left = event.at("eta_seconds"), done = event.at("train_seconds");
      const double of_tower = trained_ == 0 ? done + left : seconds_ / trained_;
      const uint32_t to_begin = tasks_ - std::min<uint32_t>(next_, tasks_);
      event["eta_seconds"] = left + of_tower * to_begin / workers_;
    }
    events_(event);
  }

  LocalRun& run_;
  TowerRun& towers_;
  const EventSink& events_;
  const uint32_t tasks_;
  const uint32_t workers_;
  const uint32_t threads_;  // of a worker
  std::atomic<uint32_t> next_{0};

  std::mutex mutex_;  // guards what follows, and events_
  std::set<uint32_t> at_work_;
  double seconds_ = 0;  // of the towers that this process has trained
  uint32_t trained_ = 0;
  bool said_interrupted_ = false;
  std::exception_ptr failure_;
};

void LocalRun::run(const EventSink& events) {
  const uint32_t tasks = tower_tasks(job_.experiment.model);
  if (tasks == 1) {
    Trainer& trainer = make_trainer(0, job_);
    trainer.prepare();
    trainer.run(*comm::make_solo_group(), events);
    return;
  }
  const unsigned threads = thread_count(job_);
  ThreadPool pool(threads, job_.throttle);
  TowerRun towers(job_, pool);
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
  Towers(*this, towers, threads, events).train();
  towers.finish(events, [this] { return stop_requested_.load(); });
}

}  // namespace modelet::agent
