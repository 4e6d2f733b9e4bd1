#include "node_agent/train/run_checkpoints.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"
#include "base/version.h"
#include "node_agent/step/exchange/rounds.h"
#include "node_agent/train/job/same_run.h"
#include "shard/modelet/checkpoint/folders.h"
#include "shard/modelet/state.h"

namespace modelet::agent {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

using shard::CheckpointWriter;

constexpr const char *kBestFolder = "best", *kOfRanks = "ranks";  // kOfRanks: a name in the index's `extra`

// A rank tells whether it has written its part, then its numbers, then its digests. Its numbers begin here.
constexpr size_t kLeadingNumbers = 1;

constexpr int kWarnEvery = 30;  // attempts to write a result
// Ranks whose disks are faster wait this many times longer than in a step before they miss a rank that still
// writes.
constexpr double kPatience = 20;

std::vector<std::vector<double>> numbers_of_ranks(const json& extra, const fs::path& folder) {
  std::vector<std::vector<double>> rows;
  if (!extra.contains(kOfRanks)) return rows;  // written by an earlier version
  try {
    extra.at(kOfRanks).get_to(rows);
  } catch (const json::exception& e) {
    throw FormatError(folder.string() + ": its numbers of ranks make no sense: " + e.what());
  }
  return rows;
}

constexpr const char* kAdvice = ": continue with --resume {} and another --out";

shard::Checkpoint open_checkpoint(const fs::path& folder) {
  try {
    return shard::Checkpoint::open(folder);
  } catch (const FormatError& error) {
    shard::throw_with_intact(error, folder, kAdvice);
  }
}

}  // namespace

RunCheckpoints::RunCheckpoints(const TrainJob& job, const Sharding& sharding)
    : job_(job), sharding_(sharding), checkpoints_(job.out / "checkpoints") {
  if (!job.resume.empty()) folder_ = shard::find_checkpoint(job.resume);
  if (job.rank == 0 && !job.private_folder) shard::require_one_run(job.out, folder_);
  if (job.resume.empty()) return;
  resumed_ = open_checkpoint(folder_);
  require_same_run(*resumed_, job);
}

std::optional<RunCheckpoints::RunState> RunCheckpoints::restore(shard::Network& network) const {
  if (!resumed_) {
    network.initialise();
    return std::nullopt;
  }
  if (job_.other_samples) network.initialise();  // features that the checkpoint does not know
  try {
    for (const auto& modelet : network.modelets()) shard::restore_modelet(*modelet, *resumed_);
  } catch (const FormatError& error) {
    shard::throw_with_intact(error, resumed_->folder(), kAdvice);
  }
  const shard::CheckpointIndex& index = resumed_->index();
  json extra = json::parse(index.extra);
  auto of_ranks = numbers_of_ranks(extra, resumed_->folder());
  return RunState{index.step, index.best_step, std::move(extra), std::move(of_ranks)};
}

void RunCheckpoints::take_folder(uint64_t best_step) {
  const fs::path resumed = resumed_ ? resumed_->folder() : fs::path();
  if (!job_.private_folder) {
    if (job_.rank != 0) return;
    lock_.emplace(shard::take_run_folder(job_.out, resumed));
    if (resumed_ && best_step > 0) shard::bring_checkpoint(resumed.parent_path(), best_step, checkpoints_);
    return;
  }
  std::error_code failure;
  fs::create_directories(job_.out, failure);
  if (failure) throw Error(job_.out.string() + ": " + failure.message() + " (making the run's folder)");
  lock_ = FileLock::take(job_.out / ".lock");
  if (!lock_)
    throw Error(job_.out.string() +
                ": another process trains into this folder; give each agent a --work-dir of its own");
  if (resumed_ && best_step > 0) bring_best(best_step);
  remove_parts_of_former_groups();
}

// Removes parts after the step that the run goes on from: they are written again. Other nodes have what the
// run may still need of them.
void RunCheckpoints::remove_parts_of_former_groups() {
  for (const shard::StepFolder& folder : shard::complete_before(checkpoints_, UINT64_MAX)) {
    if (folder.step > resumed_step())
      shard::remove_tree(folder.path);
    else
      checkpoint_steps_.insert(checkpoint_steps_.begin(), folder.step);
  }
}

bool RunCheckpoints::write(const RunState& state, Purpose purpose, shard::Network& network,
                           const shard::Dataset& data, RankGrid& grid, comm::Tag tag,
                           const SnapshotSink& sink, const Wait& wait) {
  network.output().wait_for_rehash();
  Part part;
  const std::string problem = with_retries(purpose, tag, wait, [&](comm::Tag first, comm::Tag second) {
    return write_once(part, state, purpose, network, data, grid, {first, second});
  });
  if (problem.empty()) {
    report_written(state.step, purpose, std::move(part.files), sink);
  } else {
    log_warning("{}; the run goes on without this {}", problem,
                purpose == Purpose::kSnapshot ? "snapshot" : "checkpoint");
    remove_partial(state.step);
  }
  wait_for_disks(grid, tag);
  return problem.empty();
}

// In a shared folder, rank 0 removes what all have written.
void RunCheckpoints::remove_partial(uint64_t step) const {
  std::error_code ignored;
  if (job_.private_folder || job_.rank == 0)
    fs::remove_all(checkpoints_ / shard::partial_name(step), ignored);
}

// Calls `attempt` with the tags of its two rounds. It returns why it failed; then a result is tried again after
// a wait. `tag` becomes the next one. Returns why the last attempt failed; empty: it did not.
std::string RunCheckpoints::with_retries(Purpose purpose, comm::Tag& tag, const Wait& wait,
                                         const Attempt& attempt) {
  const auto next_tag = [&] { return std::exchange(tag, {tag.step, static_cast<uint16_t>(tag.round + 1)}); };
  for (int failures = 0;;) {
    const comm::Tag first = next_tag(), second = next_tag();
    std::string problem = attempt(first, second);
    if (problem.empty() || purpose != Purpose::kResult) return problem;
    if (failures++ % kWarnEvery == 0)
      log_warning("{}; the run waits, and tries again until there is room or it is stopped", problem);
    if (failures == kSaveAttempts) throw PeerError(-1, problem);
    if (!wait(next_tag())) throw PeerError(-1, problem + "; the run was stopped while it waited");
  }
}

void RunCheckpoints::report_written(uint64_t step, Purpose purpose, std::vector<std::string> files,
                                    const SnapshotSink& sink) {
  written_step_ = step;
  if (!job_.private_folder) return;
  if (sink)
    sink({.step = step, .keep = purpose != Purpose::kSnapshot, .folder = folder_, .files = std::move(files)});
  if (purpose != Purpose::kSnapshot) remove_old_parts();
}

// Removes old parts of checkpoints. Other nodes have them; they also remove snapshots.
void RunCheckpoints::remove_old_parts() {
  std::erase(checkpoint_steps_, written_step_);
  checkpoint_steps_.push_back(written_step_);
  std::error_code ignored;  // it is removed with the run's folder at the latest
  while (checkpoint_steps_.size() > job_.experiment.train.keep_checkpoints) {
    fs::remove_all(shard::checkpoint_of_step(checkpoints_, checkpoint_steps_.front()), ignored);
    checkpoint_steps_.erase(checkpoint_steps_.begin());
  }
}

// Does what is left to do of this rank's part. Returns why a part was not written; empty: all were. A rank
// that fails still takes part in what follows, so that the others are told. All ranks learn whether a result
// is in place on all, because the last attempt must be the same for all, and whether rank 0 has put a
// checkpoint in a shared folder in place.
std::string RunCheckpoints::write_once(Part& part, const RunState& state, Purpose purpose,
                                       shard::Network& network, const shard::Dataset& data, RankGrid& grid,
                                       const std::array<comm::Tag, 2>& tags) {
  if (part.writer)
    part.problem.clear();
  else
    part = write_part(state, network);
  const Numbers all = exchange_numbers(part, state, grid, tags[0]);
  std::string problem = problem_of(all, part, state.step, grid);
  if (!problem.empty()) return problem;
  try {
    if (!part.published) publish(part, index_of(state, all), network, data);
  } catch (const UsageError&) {  // the ranks do not see one folder
    throw;
  } catch (const std::exception& error) {
    if (!part.committed) part = failed_part(state.step, error.what());
    part.problem = error.what();
  }
  if (job_.private_folder && purpose != Purpose::kResult) return part.problem;
  return problem_of(all_succeed(part, grid, tags[1]), part, state.step, grid);
}

// Returns 1 for each rank that has succeeded, else 0, when all ranks have called it.
RunCheckpoints::Numbers RunCheckpoints::all_succeed(const Part& part, RankGrid& grid, comm::Tag tag) const {
  const uint64_t own = part.problem.empty() ? 1 : 0;
  const std::vector<size_t> counts(static_cast<size_t>(job_.size), 1);
  return grid.all_gather_numbers(tag, std::span(&own, 1), counts, kPatience);
}

// `numbers`: each rank's first number is 0 if it has failed.
std::string RunCheckpoints::problem_of(const Numbers& numbers, const Part& part, uint64_t step,
                                       const RankGrid& grid) const {
  std::string problem;
  for (int rank = 0; rank < job_.size; ++rank) {
    if (numbers[static_cast<size_t>(rank)][0] != 0) continue;
    const bool is_own = rank == job_.rank;  // of the others only the node is known
    if (problem.empty() || is_own)
      problem = grid.node_name(rank) + " could not write its part of the state after step " +
                std::to_string(step) + (is_own ? ": " + part.problem : "");
  }
  return problem;
}

// Removes what was written of the part, so that it takes no room until the next attempt. In a shared folder it
// stays: what others have written there is good.
RunCheckpoints::Part RunCheckpoints::failed_part(uint64_t step, const std::string& why) const {
  std::error_code ignored;
  if (job_.private_folder) fs::remove_all(checkpoints_ / shard::partial_name(step), ignored);
  Part part;
  part.problem = why;
  part.digests.assign(2 * written_by(job_.rank).size(), 0);
  return part;
}

RunCheckpoints::Part RunCheckpoints::write_part(const RunState& state, shard::Network& network) const {
  Part part;
  try {
    save_modelets(part, state, network);
  } catch (const FormatError& error) {  // no later attempt would help, and no reader would take the file
    remove_partial(state.step);
    throw Error(
        fmt::format("training diverged: {}; lower train.learning_rate, or set optimizer.clip. The "
                    "checkpoint before this one stays",
                    error.what()));
  } catch (const std::exception& error) {
    return failed_part(state.step, error.what());
  }
  return part;
}

void RunCheckpoints::save_modelets(Part& part, const RunState& state, shard::Network& network) const {
  part.writer.emplace(
      checkpoints_, state.step,
      job_.private_folder ? CheckpointWriter::Folder::kPrivate : CheckpointWriter::Folder::kShared);
  const std::vector<ModeletSpec> mine = written_by(job_.rank);
  for (const auto& modelet : network.modelets()) {
    if (std::ranges::find(mine, modelet->spec().id, &ModeletSpec::id) == mine.end()) continue;
    const shard::CheckpointEntry entry = shard::save_modelet(*modelet, *part.writer);
    part.files.push_back(entry.file);
    part.digests.push_back(entry.digest.bytes);
    part.digests.push_back(entry.digest.xxh3);
  }
  if (best_.empty() || state.best_step == state.step) return;
  for (size_t i = 0, count = part.files.size(); i < count; ++i) {
    part.files.push_back(kBestPrefix + part.files[i]);
    part.writer->add(best_ / part.files[i], part.files.back());
  }
}

RunCheckpoints::Numbers RunCheckpoints::exchange_numbers(const Part& part, const RunState& state,
                                                         RankGrid& grid, comm::Tag tag) const {
  const std::vector<double>& own = state.of_ranks.front();
  std::vector<uint64_t> numbers = {part.problem.empty() ? uint64_t{1} : 0};
  for (const double number : own) numbers.push_back(std::bit_cast<uint64_t>(number));
  numbers.insert(numbers.end(), part.digests.begin(), part.digests.end());
  std::vector<size_t> counts;
  for (int rank = 0; rank < job_.size; ++rank)
    counts.push_back(kLeadingNumbers + own.size() + 2 * written_by(rank).size());
  return grid.all_gather_numbers(tag, numbers, counts, kPatience);
}

// The index. It is the same on all ranks, except for what only rank 0 knows.
shard::CheckpointIndex RunCheckpoints::index_of(const RunState& state, const Numbers& all) const {
  shard::CheckpointIndex index{.modelet_version = kVersion,
                               .step = state.step,
                               .best_step = state.best_step,
                               .experiment = job_.experiment,
                               .shape = job_.shape};
  if (resumed_) index.removed_labels = resumed_->index().removed_labels;
  index.shape.train_rows += earlier_rows();
  json rows = json::array();
  const size_t first_digest = kLeadingNumbers + state.of_ranks.front().size();
  for (int rank = 0; rank < job_.size; ++rank) {
    const std::vector<uint64_t>& numbers = all[static_cast<size_t>(rank)];
    json row = json::array();
    for (size_t i = kLeadingNumbers; i < first_digest; ++i) row.push_back(std::bit_cast<double>(numbers[i]));
    rows.push_back(std::move(row));
    size_t i = first_digest;
    for (const ModeletSpec& spec : written_by(rank)) {
      index.modelets.push_back(shard::checkpoint_entry(spec, {numbers[i], numbers[i + 1]}));
      i += 2;
    }
  }
  json extra = state.extra;
  extra[kOfRanks] = std::move(rows);
  index.extra = extra.dump();
  std::ranges::sort(index.modelets, {}, [](const shard::CheckpointEntry& e) { return e.spec.id; });
  return index;
}

// Rank 0 makes the checkpoint visible. In a private folder each rank does so with its part.
void RunCheckpoints::publish(Part& part, shard::CheckpointIndex index, shard::Network& network,
                             const shard::Dataset& data) {
  if (!part.committed) commit(part, std::move(index), data);
  const shard::CheckpointIndex& done = *part.committed;
  if (job_.private_folder && job_.experiment.data.validation > 0 && done.best_step == done.step)
    keep_best(done, network);
  part.published = true;
}

void RunCheckpoints::commit(Part& part, shard::CheckpointIndex index, const shard::Dataset& data) {
  folder_ = part.writer->folder();
  of_ranks_ = json::parse(index.extra).at(kOfRanks);
  largest_part_ = 0;
  for (int rank = 0; rank < job_.size; ++rank) {
    uint64_t bytes = 0;
    for (const ModeletSpec& spec : written_by(rank)) bytes += index.modelets[spec.id].digest.bytes;
    largest_part_ = std::max(largest_part_, bytes);
  }
  const bool first = job_.rank == 0;
  if (const auto encoder = data.encoder(); !encoder.empty()) {
    index.encoder = first ? part.writer->write_encoder(encoder)
                          : shard::FileDigest{encoder.size(), shard::xxh3_of(encoder)};
    if (first) part.files.push_back(shard::kEncoderName);
  }
  if (!job_.private_folder) {
    if (first) part.writer->commit(index, job_.experiment.train.keep_checkpoints);
  } else {
    if (first) part.files.push_back(shard::kIndexName);
    if (first && has_best_files(index)) {
      part.files.push_back(kBestPrefix + std::string(shard::kIndexName));
      part.writer->add(best_ / shard::kIndexName, part.files.back());
    }
    part.writer->commit_part(first ? &index : nullptr);
  }
  part.committed = std::move(index);
}

// The weights that were just written are the best. Peers in other replicas may have written some of those
// that this rank holds, so this rank writes these itself.
void RunCheckpoints::keep_best(const shard::CheckpointIndex& index, shard::Network& network) {
  const CheckpointWriter writer(job_.out / kBestFolder, index.step, CheckpointWriter::Folder::kPrivate);
  try {
    for (const auto& modelet : network.modelets()) {
      const std::string file = shard::modelet_file(modelet->spec());
      if (fs::exists(folder_ / file))
        writer.add(folder_ / file, file);
      else
        shard::save_modelet(*modelet, writer);
    }
    take_best(writer, &index);
  } catch (...) {
    writer.abandon();
    throw;
  }
}

// Takes the best weights from the snapshot that the run goes on from.
void RunCheckpoints::bring_best(uint64_t step) {
  const CheckpointWriter writer(job_.out / kBestFolder, step, CheckpointWriter::Folder::kPrivate);
  const std::string prefix = step == resumed_->index().step ? "" : kBestPrefix;
  const auto bring = [&](const std::string& name) { writer.add(resumed_->folder() / (prefix + name), name); };
  for (const ModeletSpec& modelet : sharding_.held()) bring(shard::modelet_file(modelet));
  bring(shard::kIndexName);
  take_best(writer, nullptr);
}

void RunCheckpoints::take_best(const CheckpointWriter& writer, const shard::CheckpointIndex* index) {
  best_ = writer.commit_part(index);
  for (const shard::StepFolder& folder : shard::step_folders(best_.parent_path()))
    if (folder.path != best_) shard::remove_tree(folder.path);
}

void RunCheckpoints::amend(const RunState& state, Purpose purpose, RankGrid& grid, comm::Tag tag,
                           const Wait& wait) const {
  Part part;
  const std::string problem = with_retries(purpose, tag, wait, [&](comm::Tag first, comm::Tag) {
    part.problem.clear();
    try {
      if (job_.rank == 0) amend_index(state);
    } catch (const std::exception& error) {
      part.problem = error.what();
    }
    return problem_of(all_succeed(part, grid, first), part, state.step, grid);
  });
  if (!problem.empty())
    log_warning("{}; a run that goes on from step {} will evaluate it again", problem, state.step);
}

void RunCheckpoints::amend_index(const RunState& state) const {
  json extra = state.extra;
  extra[kOfRanks] = of_ranks_;
  shard::amend_checkpoint(folder_, state.best_step, extra.dump(), job_.experiment.train.keep_checkpoints);
}

void RunCheckpoints::return_to(uint64_t best_step, uint64_t step, shard::Network& network, RankGrid& grid,
                               comm::Tag tag) {
  folder_ = shard::checkpoint_of_step(checkpoints_, best_step);
  if (best_step == step) return;
  network.output().wait_for_rehash();
  const shard::Checkpoint best = shard::Checkpoint::open(job_.private_folder ? best_ : folder_);
  for (const auto& modelet : network.modelets()) shard::restore_modelet(*modelet, best);
  wait_for_disks(grid, tag);
}

// Returns when all ranks have called it.
void RunCheckpoints::wait_for_disks(RankGrid& grid, comm::Tag tag) const {
  const std::vector<size_t> nothing(static_cast<size_t>(job_.size), 0);
  grid.all_gather_numbers(tag, {}, nothing, kPatience);
}

std::vector<ModeletSpec> RunCheckpoints::written_by(int rank) const {
  std::vector<ModeletSpec> written;
  const std::vector<ModeletSpec> held = sharding_.modelets_of(rank % job_.ranks());
  for (auto i = static_cast<size_t>(rank / job_.ranks()); i < held.size();
       i += static_cast<size_t>(job_.replicas()))
    written.push_back(held[i]);
  return written;
}

}  // namespace modelet::agent
