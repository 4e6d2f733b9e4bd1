// TrainJob: what a rank is told about a training run before the run begins, and how the rank reports what
// happens. Plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "base/parallel/throttle.h"
#include "node_agent/replicas/peer_masks.h"
#include "node_agent/step/exchange/sharding.h"
#include "shard/data/store/csr.h"

namespace modelet::agent {

// Samples in the memory of this process, for a run on one node. `test` may have no rows; then nothing is
// tested.
struct SamplesInMemory {
  shard::CsrSamples train, test;
};

// When the run makes a snapshot (node_agent/train/job/snapshot.h). This never changes what is learned,
// except with several replicas, which synchronise before each snapshot.
struct SnapshotOptions {
  bool enabled = false;               // only with TrainJob::private_folder
  uint32_t every_steps = 0;           // 0: a budget decides
  double bytes_per_second = 0;        // rate at which a rank's snapshots may be sent; 0: unknown
  double seconds_between_losses = 0;  // mean time between losses of a node of the run; 0: unknown
  double retry_seconds = 2;           // until a result that could not be written is tried again
  // Whether the snapshot of a step, or a later one, is safe on other nodes. No function: nobody knows.
  // Called on the training thread.
  std::function<bool(uint64_t step)> is_safe = {};
};

class SampleSource;  // node_agent/train/data/sample_source.h

struct TrainJob {
  std::string run;  // name of the run
  Experiment experiment;
  DataShape shape;
  std::vector<uint32_t> owner;   // [modelets of the partition] -> rank within each replica (rank_grid.h)
  int rank = 0, size = 1;        // among the ranks of all replicas
  uint32_t threads = 0;          // 0: what the experiment says, or all cores
  std::filesystem::path out;     // folder of the run: checkpoints/
  bool private_folder = false;   // `out` has only this rank's files; other ranks do not see it
  std::filesystem::path resume;  // empty, or a checkpoint to continue from
  // Prepared files that are read instead of data.train and data.test; the experiment keeps its own paths.
  // Empty: data.train and data.test are read. train_file may lack labels of neurons that this rank does not
  // hold.
  std::filesystem::path train_file, test_file;
  // The file of this rank's private data, whose name alone is data.train (node_agent/train/data/private_samples.h); empty:
  // the data is not private.
  std::filesystem::path private_file;
  // How often the group of the run was formed before. Private samples are then drawn anew. Were steps repeated with the
  // same samples, a sum with an owner and one without it would differ by just what this owner gave.
  uint32_t former_groups = 0;
  PeerIdentity identity;  // of this rank, for masked sums
  // Called on the training thread before anything of a round is sent to which this rank gives its part. If it throws, the
  // run ends, and nothing was sent. No function: nobody counts.
  std::function<void()> before_round = {};
  // The run is a task of a run of towers (base/experiment/towers.h), which has so many; the file divides the labels
  // among them.
  struct Tower {
    uint32_t task = 0, towers = 1, divisions = 1;
    std::filesystem::path division_file = {};
  };
  std::optional<Tower> tower;
  const SamplesInMemory* in_memory = nullptr;  // read instead of any file; must outlive the job
  // Where samples come from instead of all of the above; must outlive the job. The shape then is that of the
  // samples of all replicas together. Null: every rank reads the same data.
  const SampleSource* samples = nullptr;
  // `resume` has learned from other samples. The run goes on from its weights for train.epochs more epochs.
  // It continues to count steps, so that no random number is drawn twice.
  bool other_samples = false;
  SnapshotOptions snapshots;
  Throttle* throttle = nullptr;  // this machine's; must outlive the job. Null: all threads, always

  int replicas() const { return static_cast<int>(experiment.cluster.replicas); }
  int ranks() const { return size / replicas(); }  // ranks of a replica
  int replica() const { return rank / ranks(); }   // this rank's replica
};

// Which modelets each rank of the job's replica holds. Throws UsageError if that many nodes cannot form
// equal replicas.
Sharding sharding_of(const TrainJob& job);

// How many threads the rank uses.
unsigned thread_count(const TrainJob& job);

// Takes an event of the run, as it appears in JSON Lines (docs/events.md); its member "event" names it.
using EventSink = std::function<void(const nlohmann::json&)>;

}  // namespace modelet::agent
