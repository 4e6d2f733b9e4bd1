// TrainJob: what a rank is told about a training run before it begins, and how it reports what happens. Plain
// values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "base/parallel/throttle.h"
#include "node_agent/step/exchange/sharding.h"
#include "shard/data/store/csr.h"

namespace modelet::agent {

// Samples in the memory of this process, for a run of one node. `test` may have no rows: then nothing is
// tested.
struct SamplesInMemory {
  shard::CsrSamples train, test;
};

// When the run makes a snapshot (node_agent/train/job/snapshot.h). Decides nothing that is learned, but with
// several replicas, which settle for it.
struct SnapshotOptions {
  bool enabled = false;               // only with TrainJob::private_folder
  uint32_t every_steps = 0;           // 0: from a budget
  double bytes_per_second = 0;        // that may be sent of a rank's snapshots; 0: unknown
  double seconds_between_losses = 0;  // of nodes of the run; 0: unknown
  // Whether the snapshot of a step, or a later one, is safe on other nodes; none: nobody says so. Called by the
  // training thread.
  std::function<bool(uint64_t step)> is_safe = {};
};

struct TrainJob {
  std::string run;  // name of the run
  Experiment experiment;
  DataShape shape;
  std::vector<uint32_t> owner;   // [modelets of the partition] -> rank within each replica (rank_grid.h)
  int rank = 0, size = 1;        // of all replicas
  uint32_t threads = 0;          // 0: the experiment's, or all cores
  std::filesystem::path out;     // folder of the run: checkpoints/
  bool private_folder = false;   // other ranks do not see `out`: it has this rank's files
  std::filesystem::path resume;  // empty, or a checkpoint to continue from
  // Prepared files that are read in place of data.train and data.test, whose paths the experiment keeps;
  // empty: data.train and data.test themselves. The first may lack labels of neurons that this rank does not
  // hold.
  std::filesystem::path train_file, test_file;
  const SamplesInMemory* in_memory = nullptr;  // read in place of any file; must outlive the job
  // `resume` has learned from other samples: the run goes on from its weights for train.epochs more epochs,
  // and counts steps on, so that nothing is drawn twice.
  bool other_samples = false;
  SnapshotOptions snapshots;
  Throttle* throttle = nullptr;  // of this machine; must outlive the job. Null: all threads, always

  int replicas() const { return static_cast<int>(experiment.cluster.replicas); }
  int ranks() const { return size / replicas(); }  // of a replica
  int replica() const { return rank / ranks(); }   // that this rank belongs to
};

// Which modelets each rank of the job's replica holds. UsageError if that many nodes cannot form equal
// replicas.
Sharding sharding_of(const TrainJob& job);

// An event of the run as it appears in JSON Lines (docs/events.md); "event" names it.
using EventSink = std::function<void(const nlohmann::json&)>;

}  // namespace modelet::agent
