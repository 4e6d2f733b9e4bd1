// CheckpointKeeper: the checkpoints of a run: which one it continues from, and writing, amending and removing
// them. All ranks write their part, and rank 0 makes it a checkpoint (shard/modelet/checkpoint.h). Used by
// the training thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/system/file.h"
#include "node_agent/replicas/rank_grid.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/train/job/train_job.h"
#include "shard/data/store/dataset.h"
#include "shard/layers/network.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::agent {

class CheckpointKeeper {
 public:
  // Opens the checkpoint from which the job is to continue. UsageError if there is none or it belongs to
  // another run, and on rank 0 if the run's folder holds another run. Here and in restore(), the Error about
  // a damaged checkpoint names the newest intact one of the run. `job` and `sharding` must outlive it.
  CheckpointKeeper(const TrainJob& job, const Sharding& sharding);

  // The state of the run that a checkpoint keeps besides the modelets.
  struct RunState {
    uint64_t step = 0;       // steps done
    uint64_t best_step = 0;  // of the best checkpoint until now; `step` if it is this one
    nlohmann::json extra;    // the trainer's own
  };

  // Initialises `network` and returns nothing, or restores it and returns the state to continue from.
  std::optional<RunState> restore(shard::Network& network) const;
  // On rank 0: from now on nobody else trains into the run's folder. The checkpoint of `best_step` (0: none)
  // is brought along if the run was resumed from another folder, because the run may end with it.
  void take_folder(uint64_t best_step);

  // Writes a checkpoint and removes old ones. All ranks call it after the same step; uses the round of `tag`.
  // `data`: that of the run, whose encoder is kept.
  void write(const RunState& state, shard::Network& network, const shard::Dataset& data, RankGrid& grid,
             comm::Tag tag);
  // Adds what has become known since to the last checkpoint.
  void amend(const RunState& state) const;
  // Gives the network the weights of the best step, whose checkpoint is the last one from then on.
  void return_to(uint64_t best_step, uint64_t step, shard::Network& network);

  // The last checkpoint that was written or resumed from.
  const std::filesystem::path& folder() const { return folder_; }
  uint64_t written_step() const { return written_step_; }  // of the last that was written; 0: none yet

 private:
  // The replicas share the work of writing: returns the modelets that `rank` writes.
  std::vector<ModeletSpec> written_by(int rank) const;

  const TrainJob& job_;
  const Sharding& sharding_;
  const std::filesystem::path checkpoints_;   // of the run
  std::optional<shard::Checkpoint> resumed_;  // none: a new run
  std::filesystem::path folder_;
  uint64_t written_step_ = 0;
  std::optional<FileLock> lock_;
};

}  // namespace modelet::agent
