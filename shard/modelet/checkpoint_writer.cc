#include "shard/modelet/checkpoint_writer.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "shard/modelet/checkpoint.h"
#include "shard/modelet/checkpoint/folders.h"

namespace modelet::shard {
namespace fs = std::filesystem;
namespace {

void write_index(const fs::path& folder, const CheckpointIndex& index, Sync sync) {
  AtomicFile file(folder / kIndexName);
  file.write(format_checkpoint_index(index));
  file.commit(sync);
  if (sync == Sync::kYes) sync_folder(folder);
}

FileDigest digest_of(const fs::path& file) {
  const MappedFile mapped(file);
  return {mapped.bytes().size(), xxh3_of(mapped.bytes())};
}

// The checkpoint is in place. What cannot be removed now is removed with the next one.
void tidy(const std::function<void()>& remove) {
  try {
    remove();
  } catch (const std::exception& error) {
    log_warning("{} (a file that is needed no more; the next checkpoint tries again)", error.what());
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(const fs::path& checkpoints, uint64_t step, Folder kind)
    : parent_(checkpoints),
      partial_(checkpoints / partial_name(step)),
      step_(step),
      sync_(kind == Folder::kShared ? Sync::kYes : Sync::kNo) {
  if (kind == Folder::kPrivate) remove_tree(partial_);  // what an attempt that crashed has left
  std::error_code failure;
  fs::create_directories(partial_, failure);  // another process may have been faster, which is no failure
  if (failure) throw Error(partial_.string() + ": " + failure.message() + " (making a checkpoint folder)");
}

CheckpointEntry CheckpointWriter::write_modelet(const ModeletSpec& spec, std::span<const Tensor> tensors,
                                                const Metadata& metadata) const {
  return checkpoint_entry(spec, write_safetensors(partial_ / modelet_file(spec), tensors, metadata, sync_));
}

FileDigest CheckpointWriter::write_encoder(std::span<const std::byte> state) const {
  AtomicFile file(partial_ / kEncoderName);
  file.write(state);
  file.commit(sync_);
  return {state.size(), xxh3_of(state)};
}

void CheckpointWriter::add(const fs::path& file, const std::string& name) const {
  link_or_copy(file, partial_ / name);
}

TowerEntry CheckpointWriter::add_tower(const fs::path& folder, uint32_t task) const {
  const Checkpoint tower = Checkpoint::open(folder);
  const std::string name = tower_folder(task);
  std::error_code failure;
  fs::create_directories(partial_ / name, failure);
  if (failure) throw Error((partial_ / name).string() + ": " + failure.message() + " (making a folder for a tower)");
  const auto add_file = [&](const std::string& file) { add(folder / file, name + "/" + file); };
  for (const CheckpointEntry& entry : tower.index().modelets) add_file(entry.file);
  if (tower.index().encoder) add_file(kEncoderName);
  add_file(kIndexName);
  if (sync_ == Sync::kYes) sync_folder(partial_ / name);
  return {name, digest_of(partial_ / name / kIndexName)};
}

FileDigest CheckpointWriter::write_division(const LabelDivision& division) const {
  const fs::path file = partial_ / LabelDivision::kFile;
  division.write(file);
  return digest_of(file);
}

fs::path CheckpointWriter::folder() const { return checkpoint_of_step(parent_, step_); }

fs::path CheckpointWriter::commit(CheckpointIndex index, uint32_t keep) const {
  MODELET_CHECK(keep >= 1 && index.step == step_);
  std::ranges::sort(index.modelets, {}, [](const CheckpointEntry& e) { return e.spec.id; });
  check_cover(index, partial_.string());
  check_files(index);
  remove_other_files(index);
  write_index(partial_, index, sync_);
  const fs::path target = folder();
  publish(target);
  tidy([&] {
    remove_leftovers();
    remove_old_checkpoints(parent_, step_, keep, index.best_step);
  });
  return target;
}

fs::path CheckpointWriter::commit_part(const CheckpointIndex* index) const {
  if (index != nullptr) write_index(partial_, *index, sync_);
  const fs::path target = folder();
  publish(target);
  tidy([&] { remove_leftovers(); });
  return target;
}

void CheckpointWriter::abandon() const { remove_tree(partial_); }

void CheckpointWriter::check_files(const CheckpointIndex& index) const {
  for (const CheckpointEntry& entry : index.modelets) {
    std::error_code failure;
    const uint64_t bytes = fs::file_size(partial_ / entry.file, failure);
    if (failure || bytes != entry.digest.bytes)
      throw UsageError(fmt::format(
          "{}: the file that a node reported as written is {}; all nodes must see the same folder of the run "
          "(--out)",
          (partial_ / entry.file).string(), failure ? "not there" : "of another size"));
  }
}

// Temporary files of a crashed attempt at this step, or modelets of another partition.
void CheckpointWriter::remove_other_files(const CheckpointIndex& index) const {
  std::set<std::string> known;
  if (index.encoder) known.insert(kEncoderName);
  if (index.division) known.insert(LabelDivision::kFile);
  for (const TowerEntry& tower : index.towers) known.insert(tower.folder);
  for (const CheckpointEntry& entry : index.modelets) known.insert(entry.file);
  std::vector<fs::path> others;
  for (const fs::directory_entry& entry : fs::directory_iterator(partial_))
    if (!known.contains(entry.path().filename().string())) others.push_back(entry.path());
  for (const fs::path& path : others) remove_tree(path);
}

void CheckpointWriter::publish(const fs::path& target) const {
  // A run that went back to an older checkpoint comes to this step a second time.
  if (fs::exists(target)) {
    remove_tree(parent_ / replaced_name(step_));
    rename_folder(target, parent_ / replaced_name(step_));
  }
  rename_folder(partial_, target);
  if (sync_ == Sync::kNo) return;
  try {
    sync_folder(parent_);
  } catch (const std::exception& error) {  // it is complete, and nothing would be left to do a second time
    log_warning("{}; the checkpoint might not outlive a power cut", error.what());
  }
}

// Hidden folders up to this step. Later ones may belong to a checkpoint that is being written.
void CheckpointWriter::remove_leftovers() const {
  for (const StepFolder& folder : step_folders(parent_))
    if (folder.kind != FolderKind::kComplete && folder.step <= step_) remove_tree(folder.path);
}

void amend_checkpoint(const fs::path& folder, uint64_t best_step, const std::string& extra, uint32_t keep) {
  CheckpointIndex index = Checkpoint::open(folder).index();
  index.best_step = best_step;
  index.extra = extra;
  write_index(folder, index, Sync::kYes);
  tidy([&] { remove_old_checkpoints(folder.parent_path(), index.step, keep, best_step); });
}

}  // namespace modelet::shard
