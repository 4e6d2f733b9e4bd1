#include "shard/modelet/checkpoint.h"

#include <algorithm>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "shard/modelet/checkpoint/folders.h"

namespace modelet::shard {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxIndexBytes = size_t{64} << 20;

}  // namespace

fs::path find_checkpoint(const fs::path& path) {
  if (!fs::is_directory(path)) throw UsageError(path.string() + ": no such folder; a checkpoint is a folder");
  if (is_checkpoint(path)) return path;
  for (const fs::path& parent : {path / "checkpoints", path})
    if (const auto newest = newest_checkpoint(parent)) return *newest;
  throw UsageError(path.string() +
                   ": no complete checkpoint here: neither index.json, nor step-*/index.json, nor " +
                   "checkpoints/step-*/index.json");
}

namespace {

bool is_intact(const fs::path& folder) {
  try {
    const Checkpoint checkpoint = Checkpoint::open(folder);
    for (const CheckpointEntry& entry : checkpoint.index().modelets) checkpoint.open_modelet(entry.spec);
    for (uint32_t task = 0; task < checkpoint.index().towers.size(); ++task)
      if (!is_intact(checkpoint.open_tower(task).folder())) return false;
    if (checkpoint.index().division) checkpoint.read_division();
    checkpoint.read_encoder();
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::optional<fs::path> newest_intact_before(const fs::path& checkpoint) {
  const auto damaged = parse_step_folder(checkpoint);
  if (!damaged) return std::nullopt;
  const std::vector<StepFolder> older = complete_before(checkpoint.parent_path(), damaged->step);
  const auto intact = std::ranges::find_if(older, is_intact, &StepFolder::path);
  if (intact == older.end()) return std::nullopt;
  return intact->path;
}

}  // namespace

void throw_with_intact(const FormatError& error, const fs::path& folder, std::string_view advice) {
  const auto intact = newest_intact_before(folder);
  if (!intact) throw error;
  std::string text(advice);
  if (const size_t place = text.find("{}"); place != text.npos) text.replace(place, 2, intact->string());
  throw FormatError(std::string(error.what()) + "; the newest whole checkpoint before it is " +
                    intact->string() + text);
}

fs::path run_of(const fs::path& path) {
  const fs::path given = path.has_filename() ? path : path.parent_path();  // "runs/a/" is "runs/a"
  const bool single = is_checkpoint(given);
  const fs::path folder = single ? given.parent_path() : given;
  if (folder.filename() == "checkpoints" || folder.filename() == kTowersFolder) return folder.parent_path();
  return single ? fs::path() : folder;
}

fs::path checkpoint_of_step(const fs::path& checkpoints, uint64_t step) {
  return checkpoints / step_name(step);
}

fs::path find_model(const fs::path& path) {
  const fs::path newest = find_checkpoint(path);
  if (is_checkpoint(path)) return path;
  const fs::path best = checkpoint_of_step(newest.parent_path(), Checkpoint::open(newest).index().best_step);
  return is_checkpoint(best) ? best : newest;
}

void bring_checkpoint(const fs::path& from, uint64_t step, const fs::path& to) {
  const fs::path source = checkpoint_of_step(from, step), target = checkpoint_of_step(to, step);
  if (is_checkpoint(target)) return;
  if (!is_checkpoint(source))
    throw UsageError(source.string() +
                     ": the best checkpoint of the run to resume is missing; it belongs beside the others");
  // Hidden until it is whole, like a new checkpoint.
  const fs::path partial = to / partial_name(step);
  std::error_code failure;
  fs::create_directories(to, failure);
  if (!failure) fs::copy(source, partial, fs::copy_options::recursive, failure);
  if (failure) throw Error(partial.string() + ": " + failure.message() + " (copying a checkpoint)");
  rename_folder(partial, target);
  sync_folder(to);
}

void require_one_run(const fs::path& run, const fs::path& resumed) {
  const auto newest = newest_checkpoint(run / "checkpoints");
  if (!newest || resumed == run / kTowersFolder) return;
  if (resumed.empty())
    throw UsageError(run.string() + ": holds a run already, up to " + newest->filename().string() +
                     "; choose another --out, or continue that run with --resume " + run.string());
  if (!fs::equivalent(resumed, *newest))
    throw UsageError(run.string() +
                     ": has a later checkpoint than the one to resume from, or one of another run: " +
                     newest->string() + "; resume from that, or choose another --out");
}

FileLock take_run_folder(const fs::path& run, const fs::path& resumed) {
  std::error_code failure;
  fs::create_directories(run, failure);
  if (failure) throw Error(run.string() + ": " + failure.message() + " (making the run's folder)");
  std::optional<FileLock> lock = FileLock::take(run / ".lock");
  if (!lock) throw UsageError(run.string() + ": another run trains into this folder; choose another --out");
  require_one_run(run, resumed);  // under the lock: another run may have ended here since the last check
  return std::move(*lock);
}

namespace {

// A checkpoint that lacks one of its files is malformed. Other failures to open a file say nothing about it.
fs::path existing(const fs::path& file) {
  std::error_code failure;
  if (fs::status(file, failure).type() == fs::file_type::not_found)
    throw FormatError(file.string() + ": No such file, which the checkpoint's index names");
  return file;
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& folder) {
  Checkpoint result;
  result.folder_ = folder;
  result.index_ = parse_checkpoint_index(read_text_file(folder / kIndexName, kMaxIndexBytes), folder);
  return result;
}

Checkpoint Checkpoint::open_tower(uint32_t task) const {
  const TowerEntry& entry = index_.towers.at(task);
  const fs::path file = existing(folder_ / entry.folder / kIndexName);
  const std::string text = read_text_file(file, kMaxIndexBytes);
  if (text.size() != entry.index.bytes || xxh3_of(std::as_bytes(std::span(text))) != entry.index.xxh3)
    throw FormatError(file.string() + ": damaged, or of another model: it differs from what the model's index says");
  Checkpoint tower;
  tower.folder_ = folder_ / entry.folder;
  tower.index_ = parse_checkpoint_index(text, tower.folder_);
  if (tower.index_.shape.all_labels != index_.shape.labels || tower.index_.shape.features != index_.shape.features)
    throw FormatError(file.string() + ": is not a tower of this model: it has other features or labels");
  return tower;
}

LabelDivision Checkpoint::read_division() const {
  const Experiment::Model& model = index_.experiment.model;
  const fs::path file = existing(folder_ / LabelDivision::kFile);
  SafetensorsFile(file, &*index_.division);  // compares size and checksum
  return LabelDivision::read(file, model.towers, model.divisions, index_.shape.labels);
}

SafetensorsFile Checkpoint::open_modelet(const ModeletSpec& spec) const {
  // An input modelet may have rows for other features (shard/modelet/state.h).
  const auto identity = [](const ModeletSpec& s) {
    return std::tuple(s.layer, s.layer == 0 ? 0 : s.inputs, s.begin, s.end);
  };
  const auto entry = std::ranges::find(index_.modelets, identity(spec),
                                       [&](const CheckpointEntry& e) { return identity(e.spec); });
  if (entry == index_.modelets.end())
    throw FormatError(
        folder_.string() + ": no modelet '" + spec.name() + "' with " + std::to_string(spec.inputs) +
        " inputs; the checkpoint was made with another partition ([modelets], model.hidden) or other data");
  return SafetensorsFile(existing(folder_ / entry->file), &entry->digest);
}

std::vector<std::byte> Checkpoint::read_encoder() const {
  if (!index_.encoder) return {};
  const SafetensorsFile file(existing(folder_ / kEncoderName), &*index_.encoder);
  return {file.bytes().begin(), file.bytes().end()};
}

}  // namespace modelet::shard
