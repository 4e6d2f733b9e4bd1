// LocalRun: a run of this process alone, from its data to its model: of one network, or of towers
// (base/experiment/towers.h), one after the other, so that only one is in memory.
//
// Construct it and call run() on one thread. Any thread, and a signal handler, may call request_stop().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "node_agent/train/job/train_job.h"
#include "node_agent/train/trainer.h"

namespace modelet::agent {

class TowerRun;

class LocalRun {
 public:
  explicit LocalRun(TrainJob job);
  ~LocalRun();

  // Loads the data and trains. Throws as Trainer::prepare() and Trainer::run(). Events of towers have their "tower",
  // from 1, and "towers"; a tower begins with "tower_started" and ends with "tower_finished".
  void run(const EventSink& events);

  void request_stop();
  // As Trainer::request_trace(), of the network or tower that trains first from now on.
  void request_trace(uint32_t steps);

 private:
  void train_towers(const EventSink& events);
  nlohmann::json train_tower(const TowerRun& towers, uint32_t task, const EventSink& events);
  Trainer& next_trainer(TrainJob job);

  TrainJob job_;
  std::atomic<bool> stop_requested_{false};
  std::atomic<uint32_t> trace_steps_{0};
  std::vector<std::unique_ptr<Trainer>> trainers_;  // all stay: a signal may ask any of them to stop
  std::atomic<Trainer*> current_{nullptr};
  double seconds_of_towers_ = 0;
};

}  // namespace modelet::agent
