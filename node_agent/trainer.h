// Trainer: one rank's part of a training run, from loading data to the final checkpoint. `modelet train
// --nodes 1` runs one with a group of one, an agent runs one with a ZeroMQ group: there is no second
// implementation.
//
// Threads: construct, prepare() and run() on one thread; request_stop(), step() and memory_bytes() from any.
// A run is abandoned through its group (Group::interrupt).
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/cut.h"
#include "base/experiment.h"
#include "comm/group.h"

namespace modelet::agent {

struct TrainJob {
  std::string run;  // name of the run
  Experiment experiment;
  DataShape shape;
  std::vector<uint32_t> owner;   // [modelets of the cut] -> rank within each replica (rank_grid.h)
  int rank = 0, size = 1;        // of all replicas
  uint32_t threads = 0;          // 0: the experiment's, or all cores
  std::filesystem::path out;     // folder of the run: checkpoints/
  std::filesystem::path resume;  // empty, or a checkpoint to continue from
  // Prepared files that are read in place of data.train and data.test, whose paths the experiment keeps;
  // empty: those. The first may lack labels of neurons that this rank does not hold.
  std::filesystem::path train_file, test_file;
};

// An event of the run as it appears in JSON Lines ("event" names it: started, progress, epoch, checkpoint,
// finished).
using EventSink = std::function<void(const nlohmann::json&)>;

class Trainer {
 public:
  explicit Trainer(TrainJob job);
  ~Trainer();

  // Loads data, allocates and initialises (or restores) this rank's modelets. Needs no group. Throws on bad
  // data or checkpoint.
  void prepare();

  // Trains to the end. Rank 0 reports events; the last one is "finished". All ranks stop at the same step
  // boundary (of several replicas: the next at which they synchronise) after request_stop() on any of them,
  // write a checkpoint, and run() throws Interrupted.
  // PeerError: a rank is missing.
  void run(comm::Group& group, const EventSink& events);

  void request_stop();    // async-signal-safe
  uint64_t step() const;  // steps completed; any thread
  // Of this rank's modelets, of the buffers in which replicas synchronise them, and of labels.
  uint64_t memory_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace modelet::agent
