// Trainer: one rank's part of a training run, from loading data to the final checkpoint. `modelet train
// --nodes 1` runs one with a group of one, and an agent runs one with a ZeroMQ group: there is no second
// implementation.
//
// Threads: construct, prepare() and run() on one thread; request_stop(), step() and memory_bytes() from any.
// A run is abandoned through its group (Group::interrupt).
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
  // `clock`: for measuring times, and for reporting progress after many seconds without a report.
  explicit Trainer(TrainJob job, std::unique_ptr<const Clock> clock = std::make_unique<SteadyClock>());
  ~Trainer();

  // Loads data, allocates and initialises (or restores) this rank's modelets. Needs no group. Throws if the
  // data or the checkpoint is bad, and Error if the memory of this node is too small. If text has to be
  // prepared, every rank reports that as events "preparing"; what `events` throws ends it.
  void prepare(const EventSink& events = {});

  // Trains to the end. Rank 0 reports events; the last one is "finished". After request_stop() on any rank
  // all stop at the same step boundary (with several replicas: when they next synchronise), write a
  // checkpoint, and run() throws Interrupted. PeerError: a rank is missing.
  // `snapshots`: hears on every rank of its part of each snapshot and checkpoint, if the folder is private.
  void run(comm::Group& group, const EventSink& events, const SnapshotSink& snapshots = {});

  void request_stop() { outside_.stop_requested = true; }  // async-signal-safe
  uint64_t step() const { return outside_.step; }          // steps completed; any thread
  // Bytes of this rank's modelets, of the buffers in which replicas synchronise them, and of labels.
  uint64_t memory_bytes() const { return outside_.memory_bytes; }

  // The longest time without a report from rank 0, up to the end of a step, or of a batch that is evaluated.
  static constexpr double kMostSilentSeconds = 5;

 private:
  class Training;
  // State that other threads set and read.
  struct Outside {
    std::atomic<bool> stop_requested{false};
    std::atomic<uint64_t> step{0}, memory_bytes{0};
  };

  const TrainJob job_;
  const std::unique_ptr<const Clock> clock_;
  Outside outside_;
  std::unique_ptr<Training> training_;  // once prepared
};

}  // namespace modelet::agent
