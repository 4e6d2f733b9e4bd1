#include "node_agent/train/job/snapshot.h"

#include "base/error.h"

namespace modelet::agent {

namespace fs = std::filesystem;

bool has_best_files(const shard::CheckpointIndex& index) {
  return index.experiment.data.validation > 0 && index.best_step > 0 && index.best_step != index.step;
}

std::vector<std::string> files_needed(const TrainJob& job, const shard::CheckpointIndex& index) {
  std::vector<std::string> names = {shard::kIndexName};
  for (const ModeletSpec& modelet : sharding_of(job).held()) names.push_back(shard::modelet_file(modelet));
  if (has_best_files(index))
    for (size_t i = 0, count = names.size(); i < count; ++i) names.push_back(kBestPrefix + names[i]);
  if (index.encoder) names.push_back(shard::kEncoderName);
  return names;
}

std::vector<NamedFile> snapshot_files(const shard::Checkpoint& checkpoint) {
  const shard::CheckpointIndex& index = checkpoint.index();
  std::vector<std::string> names = {shard::kIndexName};
  for (const shard::CheckpointEntry& entry : index.modelets) names.push_back(entry.file);
  std::vector<NamedFile> files;
  for (const std::string& name : names) files.push_back({name, checkpoint.folder() / name});
  if (index.encoder) files.push_back({shard::kEncoderName, checkpoint.folder() / shard::kEncoderName});
  if (!has_best_files(index)) return files;
  // A snapshot contains the best weights itself. For a checkpoint they are in the best checkpoint beside
  // it.
  const bool own = fs::exists(checkpoint.folder() / (std::string(kBestPrefix) + shard::kIndexName));
  const fs::path best = own ? checkpoint.folder()
                            : shard::checkpoint_of_step(checkpoint.folder().parent_path(), index.best_step);
  for (const std::string& name : names) {
    files.push_back({kBestPrefix + name, best / (own ? kBestPrefix + name : name)});
    if (!fs::exists(files.back().path))
      throw UsageError(files.back().path.string() +
                       ": missing; the best checkpoint of the run to resume belongs beside the others");
  }
  return files;
}

}  // namespace modelet::agent
