// Trainer: one rank's part of a training run, from loading data to the final checkpoint. `modelet train
// --nodes 1` runs one with a group of one, and an agent runs one with a ZeroMQ group. There is no second
// implementation.
//
// Threads: construct it, and call prepare() and run(), on one thread. Any thread may call request_stop(),
// step() and memory_bytes(). Group::interrupt() ends a run at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/system/clock.h"
#include "comm/collectives/group.h"
#include "node_agent/train/job/snapshot.h"
#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

class Trainer {
 public:
  // `clock` measures times. It also decides when to report progress after many seconds without a report.
  explicit Trainer(TrainJob job, std::unique_ptr<const Clock> clock = std::make_unique<SteadyClock>());
  ~Trainer();

  // Loads data, and allocates and initialises (or restores) this rank's modelets. Needs no group. Throws if
  // the data or the checkpoint is bad, and Error if this node's memory is too small. If text must be
  // prepared, every rank reports that as events "preparing". An exception from `events` ends the
  // preparation. After request_stop() it throws Interrupted.
  void prepare(const EventSink& events = {});

  // Trains to the end, once. Rank 0 reports events; the last one is "finished". After request_stop() on any rank,
  // all ranks stop after the same step or batch of an evaluation (replicas: when they next synchronise), write a
  // checkpoint without waiting for room, and run() throws Interrupted. Throws PeerError if a rank is missing. If the
  // folder is private, `snapshots` is told on every rank of its part of each snapshot and checkpoint.
  void run(comm::Group& group, const EventSink& events, const SnapshotSink& snapshots = {});

  void request_stop() { outside_.stop_requested = true; }  // async-signal-safe
  // On rank 0 of a replica: has all its ranks trace the next so many steps (node_agent/step/step_trace.h). Then each of
  // them reports what it has traced, as events "trace". Any thread.
  void request_trace(uint32_t steps) { outside_.trace_steps = steps; }
  uint64_t step() const { return outside_.step; }  // steps completed; any thread
  // Steps in which this rank has learned from its samples: not those of rounds in which it takes no part. Any thread.
  uint64_t steps_learned() const { return outside_.steps_learned; }
  // Bytes of this rank's modelets, of the buffers for synchronising replicas, and of labels.
  uint64_t memory_bytes() const { return outside_.memory_bytes; }

  // The longest time without a report from rank 0. A report waits for the end of the current step, or of
  // the batch that is being evaluated.
  static constexpr double kMostSilentSeconds = 5;

 private:
  class Training;
  // What other threads set and read.
  struct Outside {
    std::atomic<bool> stop_requested{false};
    std::atomic<uint64_t> step{0}, memory_bytes{0}, steps_learned{0};
    std::atomic<uint32_t> trace_steps{0};  // that are requested and not begun
  };

  TrainJob job_;
  const std::unique_ptr<const Clock> clock_;
  Outside outside_;
  std::unique_ptr<Training> training_;  // once prepared
};

}  // namespace modelet::agent
