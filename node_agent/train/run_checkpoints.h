// RunCheckpoints: finds the checkpoint from which a run continues, and writes, amends and removes
// checkpoints. All ranks write their part, and rank 0 makes it a checkpoint
// (shard/modelet/checkpoint_writer.h). Used by the training thread.
//
// With a private folder (TrainJob::private_folder) each rank's part stays where it is written, as its part
// of a snapshot (node_agent/train/job/snapshot.h), and nothing is amended. The newest checkpoints stay. If
// such a run validates, each rank also has the best weights of all modelets that it holds in OUT/best. From
// there they are put into every later snapshot, so they move with the modelets.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/system/file.h"
#include "node_agent/replicas/rank_grid.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/train/job/snapshot.h"
#include "node_agent/train/job/train_job.h"
#include "shard/data/store/dataset.h"
#include "shard/layers/network.h"
#include "shard/modelet/checkpoint.h"
#include "shard/modelet/checkpoint_writer.h"

namespace modelet::agent {

class RunCheckpoints {
 public:
  // Opens the checkpoint from which the job continues. Throws UsageError if there is none or it belongs to
  // another run, and on rank 0 if the run's folder holds another run. Here and in restore(), the error
  // about a damaged checkpoint names the newest intact one of the run. `job` and `sharding` must outlive
  // this object.
  RunCheckpoints(const TrainJob& job, const Sharding& sharding);

  // The state of the run that a checkpoint keeps besides the modelets.
  struct RunState {
    uint64_t step = 0;       // steps done
    uint64_t best_step = 0;  // step of the best checkpoint so far; `step` if it is this one
    nlohmann::json extra;    // what the trainer adds
    // Numbers of each rank, equally many. write() needs only those of this rank.
    std::vector<std::vector<double>> of_ranks = {};
  };

  // Initialises `network` and returns nothing, or restores it and returns the state to continue from.
  std::optional<RunState> restore(shard::Network& network) const;
  // Locks the run's folder, so that nobody else trains into it. In a shared folder rank 0 does this. If the
  // run was resumed, the checkpoint of `best_step` (0: none) is brought along, because the run may end with
  // it.
  void take_folder(uint64_t best_step);

  // A kSnapshot or kCheckpoint that cannot be written, for example because the disk is full, is left out with
  // a warning. A kResult is needed by the run, so it is tried again until all ranks have written their part,
  // at most kSaveAttempts times (rounds.h). Then it is a PeerError, because another group may have room.
  enum class Purpose { kSnapshot, kCheckpoint, kResult };

  // Waits before the next attempt to write a result. Returns whether to try again, which must be the same on
  // all ranks. May use the round of `tag`.
  using Wait = std::function<bool(comm::Tag tag)>;

  // Writes a checkpoint, and in a shared folder removes old ones. Returns whether the checkpoint was
  // written. All ranks must call it after the same step. Uses kSaveRounds from tag.round on (rounds.h).
  // `data`: the run's data, whose encoder is kept. `sink`: told of this rank's part if the folder is
  // private.
  bool write(const RunState& state, Purpose purpose, shard::Network& network, const shard::Dataset& data,
             RankGrid& grid, comm::Tag tag, const SnapshotSink& sink, const Wait& wait);
  // Adds to the last checkpoint what has become known since. If this fails, it is tried again for a kResult, and
  // a warning otherwise. Not for a private folder. All ranks must call it. Uses kSaveRounds from tag.round on.
  void amend(const RunState& state, Purpose purpose, RankGrid& grid, comm::Tag tag, const Wait& wait) const;
  // Gives the network the weights of the best step. That step's checkpoint is the last one from then on. All
  // ranks must call it. Uses the round of `tag`.
  void return_to(uint64_t best_step, uint64_t step, shard::Network& network, RankGrid& grid, comm::Tag tag);

  // The steps done in the checkpoint that the job goes on from; 0: none.
  uint64_t resumed_step() const { return resumed_ ? resumed_->index().step : 0; }
  // The number of training samples that it has learned from, if the job goes on with others; else 0.
  uint64_t earlier_rows() const {
    return job_.other_samples && resumed_ ? resumed_->index().shape.train_rows : 0;
  }
  // The last checkpoint that was written or resumed from.
  const std::filesystem::path& folder() const { return folder_; }
  uint64_t written_step() const { return written_step_; }  // of the last checkpoint written; 0: none yet
  uint64_t largest_part() const { return largest_part_; }  // bytes of the largest part of it

 private:
  // What this rank has written, and what it tells the others about it.
  struct Part {
    std::optional<shard::CheckpointWriter> writer;
    std::vector<std::string> files;
    std::vector<uint64_t> digests;                    // size and checksum of each modelet's file
    std::string problem;                              // why the last attempt failed; empty: it did not
    std::optional<shard::CheckpointIndex> committed;  // its index, once it is in place
    bool published = false;                           // and so are the best weights
  };
  using Numbers = std::vector<std::vector<uint64_t>>;  // [ranks]
  using Attempt = std::function<std::string(comm::Tag, comm::Tag)>;

  // The modelets that `rank` writes: the replicas share the work of writing.
  std::vector<ModeletSpec> written_by(int rank) const;
  static std::string with_retries(Purpose purpose, comm::Tag& tag, const Wait& wait, const Attempt& attempt);
  void report_written(uint64_t step, Purpose purpose, std::vector<std::string> files,
                      const SnapshotSink& sink);
  std::string write_once(Part& part, const RunState& state, Purpose purpose, shard::Network& network,
                         const shard::Dataset& data, RankGrid& grid, const std::array<comm::Tag, 2>& tags);
  std::string problem_of(const Numbers& numbers, const Part& part, uint64_t step, const RankGrid& grid) const;
  Part failed_part(uint64_t step, const std::string& why) const;
  Part write_part(const RunState& state, shard::Network& network) const;
  void remove_partial(uint64_t step) const;
  void save_modelets(Part& part, const RunState& state, shard::Network& network) const;
  Numbers exchange_numbers(const Part& part, const RunState& state, RankGrid& grid, comm::Tag tag) const;
  shard::CheckpointIndex index_of(const RunState& state, const Numbers& all) const;
  void publish(Part& part, shard::CheckpointIndex index, shard::Network& network, const shard::Dataset& data);
  Numbers all_succeed(const Part& part, RankGrid& grid, comm::Tag tag) const;
  void wait_for_disks(RankGrid& grid, comm::Tag tag) const;
  void amend_index(const RunState& state) const;
  void commit(Part& part, shard::CheckpointIndex index, const shard::Dataset& data);
  void remove_old_parts();
  void remove_parts_of_former_groups();
  void keep_best(const shard::CheckpointIndex& index, shard::Network& network);
  void bring_best(uint64_t step);
  void take_best(const shard::CheckpointWriter& writer, const shard::CheckpointIndex* index);

  const TrainJob& job_;
  const Sharding& sharding_;
  const std::filesystem::path checkpoints_;   // of the run
  std::optional<shard::Checkpoint> resumed_;  // empty: a new run
  std::filesystem::path folder_;
  uint64_t written_step_ = 0, largest_part_ = 0;
  std::vector<uint64_t> checkpoint_steps_;  // private folder: the steps of the checkpoints that are there
  nlohmann::json of_ranks_;                 // as written
  std::filesystem::path best_;              // private folder: of the best weights; empty: none yet
  std::optional<FileLock> lock_;
};

}  // namespace modelet::agent
