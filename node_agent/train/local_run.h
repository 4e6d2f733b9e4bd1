// LocalRun: a run of this process alone, from its data to its model: of one network, or of towers
// (base/experiment/towers.h). Several towers train at once where there are threads and memory for them; only those at
// work are in memory.
//
// Construct it and call run() on one thread. Any thread, and a signal handler, may call request_stop().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
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
  // from 1, and "towers"; a tower begins with "tower_started" and ends with "tower_finished". Events come one at a
  // time, and from several threads if several towers train at once.
  void run(const EventSink& events);

  void request_stop();
  // As Trainer::request_trace(), of the network or tower that begins to train first from now on.
  void request_trace(uint32_t steps);

 private:
  class Towers;

  Trainer& make_trainer(uint32_t task, TrainJob job);

  TrainJob job_;
  std::atomic<bool> stop_requested_{false};
  std::atomic<uint32_t> trace_steps_{0};
  std::vector<std::unique_ptr<Trainer>> trainers_;  // [tasks]; they stay: a signal may ask any of them to stop
  std::vector<std::atomic<Trainer*>> to_stop_;      // [tasks]; null: it has not begun
};

}  // namespace modelet::agent
