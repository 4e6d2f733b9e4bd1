#include "node_agent/train/checkpoint_keeper.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/version.h"
#include "node_agent/train/job/same_run.h"
#include "shard/modelet/state.h"

namespace modelet::agent {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

// The files of a checkpoint are wrong. (Other failures, of the machine, say nothing about them.)
[[noreturn]] void name_intact(const FormatError& error, const fs::path& damaged) {
  const auto intact = shard::newest_intact_before(damaged);
  if (!intact) throw error;
  throw FormatError(std::string(error.what()) + "; the newest whole checkpoint before it is " +
                    intact->string() + ": continue with --resume " + intact->string() + " and another --out");
}

shard::Checkpoint open_checkpoint(const fs::path& folder) {
  try {
    return shard::Checkpoint::open(folder);
  } catch (const FormatError& error) {
    name_intact(error, folder);
  }
}

}  // namespace

CheckpointKeeper::CheckpointKeeper(const TrainJob& job, const Sharding& sharding)
    : job_(job), sharding_(sharding), checkpoints_(job.out / "checkpoints") {
  if (!job.resume.empty()) folder_ = shard::find_checkpoint(job.resume);
  if (job.rank == 0) shard::require_one_run(job.out, folder_);
  if (job.resume.empty()) return;
  resumed_ = open_checkpoint(folder_);
  require_same_run(*resumed_, job);
}

std::optional<CheckpointKeeper::RunState> CheckpointKeeper::restore(shard::Network& network) const {
  if (!resumed_) {
    network.initialise();
    return std::nullopt;
  }
  try {
    for (const auto& modelet : network.modelets()) shard::restore_modelet(*modelet, *resumed_);
  } catch (const FormatError& error) {
    name_intact(error, resumed_->folder());
  }
  const shard::CheckpointIndex& index = resumed_->index();
  return RunState{index.step, index.best_step, json::parse(index.extra)};
}

void CheckpointKeeper::take_folder(uint64_t best_step) {
  const fs::path resumed = resumed_ ? resumed_->folder() : fs::path();
  lock_.emplace(shard::take_run_folder(job_.out, resumed));
  if (resumed_ && best_step > 0) shard::bring_checkpoint(resumed.parent_path(), best_step, checkpoints_);
}

void CheckpointKeeper::write(const RunState& state, shard::Network& network, const shard::Dataset& data,
                             RankGrid& grid, comm::Tag tag) {
  network.output().wait_for_rehash();
  const shard::CheckpointWriter writer(checkpoints_, state.step);
  std::vector<uint64_t> digests;
  const std::vector<ModeletSpec> mine = written_by(job_.rank);
  for (const auto& modelet : network.modelets()) {
    if (std::ranges::find(mine, modelet->spec().id, &ModeletSpec::id) == mine.end()) continue;
    const shard::CheckpointEntry entry = shard::save_modelet(*modelet, writer);
    digests.push_back(entry.digest.bytes);
    digests.push_back(entry.digest.xxh3);
  }
  // Rank 0 makes the checkpoint visible once every rank's files are written.
  std::vector<size_t> counts;
  for (int rank = 0; rank < job_.size; ++rank) counts.push_back(2 * written_by(rank).size());
  const auto all = grid.all_gather_numbers(tag, digests, counts);
  written_step_ = state.step;
  folder_ = writer.folder();
  if (job_.rank != 0) return;
  shard::CheckpointIndex index{.modelet_version = kVersion,
                               .step = state.step,
                               .best_step = state.best_step,
                               .experiment = job_.experiment,
                               .shape = job_.shape,
                               .extra = state.extra.dump()};
  for (int rank = 0; rank < job_.size; ++rank) {
    size_t i = 0;
    for (const ModeletSpec& spec : written_by(rank)) {
      const auto& numbers = all[static_cast<size_t>(rank)];
      index.modelets.push_back(shard::checkpoint_entry(spec, {numbers[i], numbers[i + 1]}));
      i += 2;
    }
  }
  if (!data.encoder().empty()) index.encoder = writer.write_encoder(data.encoder());
  writer.commit(std::move(index), job_.experiment.train.keep_checkpoints);
}

void CheckpointKeeper::amend(const RunState& state) const {
  shard::amend_checkpoint(folder_, state.best_step, state.extra.dump(),
                          job_.experiment.train.keep_checkpoints);
}

void CheckpointKeeper::return_to(uint64_t best_step, uint64_t step, shard::Network& network) {
  folder_ = shard::checkpoint_of_step(checkpoints_, best_step);
  if (best_step == step) return;
  network.output().wait_for_rehash();
  const shard::Checkpoint best = shard::Checkpoint::open(folder_);
  for (const auto& modelet : network.modelets()) shard::restore_modelet(*modelet, best);
}

std::vector<ModeletSpec> CheckpointKeeper::written_by(int rank) const {
  std::vector<ModeletSpec> written;
  const std::vector<ModeletSpec> held = sharding_.modelets_of(rank % job_.ranks());
  for (auto i = static_cast<size_t>(rank / job_.ranks()); i < held.size();
       i += static_cast<size_t>(job_.replicas()))
    written.push_back(held[i]);
  return written;
}

}  // namespace modelet::agent
