#include "shard/modelet/checkpoint.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text/strict_json.h"

namespace modelet::shard {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kFormat = "modelet-checkpoint";
constexpr uint64_t kVersion = 2, kSeedSpreadVersion = 1;  // then the run's seed gave labels their places
constexpr const char* kIndexName = "index.json";
constexpr const char* kExtension = ".safetensors";
constexpr const char* kEncoderName = "encoder.safetensors";
constexpr size_t kMaxIndexBytes = size_t{64} << 20;
constexpr int kIndexDepth = 16;  // of index.json; the trainer's `extra` may nest a little
constexpr uint64_t kMaxLayers = 64;
constexpr std::array<std::string_view, 3> kKinds = {"input", "hidden", "output"};

// ---- Folder names ----

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kReplacedSuffix = ".replaced";
constexpr std::string_view kPartialSuffix = ".partial";

std::string step_name(uint64_t step) { return fmt::format("{}{:010}", kStepPrefix, step); }
// A checkpoint of the same step that is being replaced: complete, and found when a crash left no other.
std::string replaced_name(uint64_t step) { return fmt::format(".{}{}", step_name(step), kReplacedSuffix); }
std::string partial_name(uint64_t step) { return fmt::format(".{}{}", step_name(step), kPartialSuffix); }

enum class FolderKind { kComplete, kReplaced, kPartial };
struct StepFolder {
  uint64_t step;
  FolderKind kind;
  fs::path path;
};

std::optional<StepFolder> parse_step_folder(const fs::path& path) {
  std::string name = path.filename().string();
  FolderKind kind = FolderKind::kComplete;
  if (name.starts_with('.')) {
    kind = name.ends_with(kReplacedSuffix) ? FolderKind::kReplaced : FolderKind::kPartial;
    const std::string_view suffix = kind == FolderKind::kReplaced ? kReplacedSuffix : kPartialSuffix;
    if (!name.ends_with(suffix)) return std::nullopt;
    name = name.substr(1, name.size() - 1 - suffix.size());
  }
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  uint64_t step = 0;
  const auto [stop, failure] = std::from_chars(name.data() + kStepPrefix.size(), end, step);
  if (failure != std::errc() || stop != end) return std::nullopt;
  return StepFolder{step, kind, path};
}

std::vector<StepFolder> step_folders(const fs::path& parent) {
  std::vector<StepFolder> found;
  std::error_code failure;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, failure))
    if (auto folder = parse_step_folder(entry.path())) found.push_back(std::move(*folder));
  return found;
}

bool is_checkpoint(const fs::path& folder) {
  std::error_code failure;
  return fs::is_regular_file(folder / kIndexName, failure);
}

// The newest complete checkpoint in a checkpoints/ folder; a replaced one counts only if its successor is
// missing.
std::optional<fs::path> newest_checkpoint(const fs::path& parent) {
  std::vector<StepFolder> folders = step_folders(parent);
  std::erase_if(folders,
                [](const StepFolder& f) { return f.kind == FolderKind::kPartial || !is_checkpoint(f.path); });
  const auto newest = std::ranges::max_element(
      folders, {}, [](const StepFolder& f) { return std::pair(f.step, f.kind == FolderKind::kComplete); });
  if (newest == folders.end()) return std::nullopt;
  return newest->path;
}

// ---- File system operations whose failure is an Error ----

void rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code failure;
  fs::rename(from, to, failure);
  if (failure) throw Error(to.string() + ": " + failure.message() + " (renaming a checkpoint)");
}

void remove_tree(const fs::path& path) {
  std::error_code failure;
  fs::remove_all(path, failure);
  if (failure) throw Error(path.string() + ": " + failure.message() + " (removing an old checkpoint)");
}

// A rename or a new file survives a power cut only when its folder is on disk too.
void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw Error(errno_text(folder.string()));
  const bool failed = ::fsync(fd) != 0;
  const std::string text = failed ? errno_text(folder.string()) : "";
  ::close(fd);
  if (failed) throw Error(text + " (fsync)");
}

void write_index(const fs::path& folder, const CheckpointIndex& index) {
  AtomicFile file(folder / kIndexName);
  file.write(format_checkpoint_index(index));
  file.commit();
  sync_folder(folder);
}

// Keeps `keep` of the checkpoints of `step` or before, and the best one.
void prune(const fs::path& parent, uint64_t step, uint32_t keep, uint64_t best_step) {
  std::vector<StepFolder> folders = step_folders(parent);
  std::erase_if(folders,
                [&](const StepFolder& f) { return f.kind != FolderKind::kComplete || f.step > step; });
  std::ranges::sort(folders, std::greater{}, &StepFolder::step);
  for (size_t i = keep; i < folders.size(); ++i) {
    if (folders[i].step == best_step) continue;
    // Hides it first: a half-removed folder must not look like a checkpoint.
    const fs::path hidden = parent / partial_name(folders[i].step);
    rename_folder(folders[i].path, hidden);
    remove_tree(hidden);
  }
}

// ---- JSON ----

// As text: many JSON readers keep only 53 bits of a number.
std::string hex64_text(uint64_t value) { return fmt::format("{:016x}", value); }

nlohmann::ordered_json entry_json(const CheckpointEntry& entry) {
  const ModeletSpec& spec = entry.spec;
  return {{"id", spec.id},
          {"name", spec.name()},
          {"layer", spec.layer},
          {"kind", kKinds[static_cast<size_t>(spec.kind)]},
          {"inputs", spec.inputs},
          {"begin", spec.begin},
          {"end", spec.end},
          {"file", entry.file},
          {"bytes", entry.digest.bytes},
          {"xxh3", hex64_text(entry.digest.xxh3)}};
}

uint64_t hex64_at(const nlohmann::json& json, const char* key, const std::string& where) {
  const std::string text = string_at(json, key, where);
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value, 16);
  if (text.size() != 16 || failure != std::errc() || stop != end)
    throw FormatError(fmt::format("{}: '{}' is not 16 hexadecimal digits", where, key));
  return value;
}

FileDigest digest_at(const nlohmann::json& json, const std::string& where) {
  return {unsigned_at(json, "bytes", where), hex64_at(json, "xxh3", where)};
}

uint32_t small_at(const nlohmann::json& object, const char* key, uint64_t limit, const std::string& where) {
  const uint64_t value = unsigned_at(object, key, where);
  if (value > limit) throw FormatError(fmt::format("{}: '{}' is {}, more than {}", where, key, value, limit));
  return static_cast<uint32_t>(value);
}

CheckpointEntry parse_entry(const nlohmann::json& json, const std::string& where) {
  CheckpointEntry entry;
  ModeletSpec& spec = entry.spec;
  spec.id = small_at(json, "id", UINT32_MAX, where);
  spec.layer = small_at(json, "layer", kMaxLayers, where);
  const auto kind = std::ranges::find(kKinds, string_at(json, "kind", where));
  if (kind == kKinds.end()) throw FormatError(where + ": unknown kind of layer");
  spec.kind = static_cast<LayerKind>(kind - kKinds.begin());
  spec.inputs = unsigned_at(json, "inputs", where);
  spec.begin = unsigned_at(json, "begin", where);
  spec.end = unsigned_at(json, "end", where);
  if (spec.begin >= spec.end) throw FormatError(where + ": an empty range of neurons");
  // The names follow from the range, which also keeps files inside the folder.
  entry.file = string_at(json, "file", where);
  if (string_at(json, "name", where) != spec.name() || entry.file != spec.name() + kExtension)
    throw FormatError(where + ": name and file do not belong to layer and range; expected '" + spec.name() +
                      "'");
  entry.digest = digest_at(json, where);
  return entry;
}

// Ids count up, layers too, the ranges of a layer follow each other, and each layer reads the whole layer
// below.
void check_cover(const CheckpointIndex& index, const std::string& origin) {
  const auto& modelets = index.modelets;
  const auto fail = [&](size_t i, const char* problem) {
    throw FormatError(fmt::format("{}: modelet {}: {}", origin, i, problem));
  };
  if (modelets.empty()) throw FormatError(origin + ": no modelets");
  uint64_t inputs = index.shape.features, neurons = 0;  // of the current layer, so far
  uint32_t layer = 0;
  for (size_t i = 0; i < modelets.size(); ++i) {
    const ModeletSpec& spec = modelets[i].spec;
    if (spec.layer == layer + 1 && neurons > 0) {
      inputs = std::exchange(neurons, 0);
      ++layer;
    }
    if (spec.id != i) fail(i, "its id is not its position");
    if (spec.layer != layer) fail(i, "layers do not count up by one");
    const LayerKind kind = layer == 0                            ? LayerKind::kInput
                           : layer == modelets.back().spec.layer ? LayerKind::kOutput
                                                                 : LayerKind::kHidden;
    if (spec.kind != kind) fail(i, "the kind of layer does not fit its position");
    if (spec.begin != neurons) fail(i, "its range does not begin where the one before ends");
    if (spec.inputs != inputs) fail(i, "its inputs are not the width of the layer below");
    neurons = spec.end;
  }
  if (layer == 0) throw FormatError(origin + ": no output layer");
  if (neurons != index.shape.labels)
    throw FormatError(origin + ": the output layer does not have one neuron for each label");
}

}  // namespace

CheckpointEntry checkpoint_entry(const ModeletSpec& spec, const FileDigest& digest) {
  return {spec, spec.name() + kExtension, digest};
}

std::string format_checkpoint_index(const CheckpointIndex& index) {
  const DataShape& shape = index.shape;
  nlohmann::ordered_json json = {{"format", kFormat},
                                 {"version", kVersion},
                                 {"modelet_version", index.modelet_version},
                                 {"step", index.step},
                                 {"best_step", index.best_step},
                                 {"experiment", to_toml(index.experiment)},
                                 {"data_shape",
                                  {{"features", shape.features},
                                   {"labels", shape.labels},
                                   {"train_rows", shape.train_rows},
                                   {"test_rows", shape.test_rows},
                                   {"features_per_row", shape.features_per_row},
                                   {"labels_per_row", shape.labels_per_row},
                                   {"fingerprint", hex64_text(shape.fingerprint)},
                                   {"label_seed", shape.label_seed}}},
                                 {"modelets", nlohmann::ordered_json::array()},
                                 {"extra", nlohmann::ordered_json::parse(index.extra)}};
  for (const CheckpointEntry& entry : index.modelets) json["modelets"].push_back(entry_json(entry));
  if (index.encoder)
    json["encoder"] = {
        {"file", kEncoderName}, {"bytes", index.encoder->bytes}, {"xxh3", hex64_text(index.encoder->xxh3)}};
  return json.dump(1) + "\n";
}

CheckpointIndex parse_checkpoint_index(std::string_view text, const fs::path& folder) {
  const fs::path path = folder / kIndexName;
  const std::string origin = path.string();
  const nlohmann::json json = parse_strict_json(text, origin, kIndexDepth);
  if (string_at(json, "format", origin) != kFormat)
    throw FormatError(origin + ": not the index of a Modelet checkpoint");
  const uint64_t version = unsigned_at(json, "version", origin);
  if (version != kVersion && version != kSeedSpreadVersion)
    throw FormatError(fmt::format("{}: checkpoint format version {}; this program reads versions {} and {}",
                                  origin, version, kSeedSpreadVersion, kVersion));
  CheckpointIndex index;
  index.modelet_version = string_at(json, "modelet_version", origin);
  index.step = unsigned_at(json, "step", origin);
  index.best_step = json.contains("best_step") ? unsigned_at(json, "best_step", origin) : index.step;
  if (index.best_step > index.step) throw FormatError(origin + ": 'best_step' is later than 'step'");
  try {
    index.experiment = parse_experiment(string_at(json, "experiment", origin), path);
  } catch (const UsageError& e) {
    throw FormatError(std::string("in the checkpoint's experiment: ") + e.what());
  }
  const nlohmann::json& shape = member_at(json, "data_shape", origin);
  index.shape = {unsigned_at(shape, "features", origin),       unsigned_at(shape, "labels", origin),
                 unsigned_at(shape, "train_rows", origin),     unsigned_at(shape, "test_rows", origin),
                 number_at(shape, "features_per_row", origin), number_at(shape, "labels_per_row", origin)};
  // Earlier programs did not keep it.
  if (shape.contains("fingerprint")) index.shape.fingerprint = hex64_at(shape, "fingerprint", origin);
  index.shape.label_seed =
      version == kSeedSpreadVersion ? index.experiment.train.seed : unsigned_at(shape, "label_seed", origin);
  const nlohmann::json& modelets = member_at(json, "modelets", origin);
  if (!modelets.is_array()) throw FormatError(origin + ": 'modelets' is not a list");
  for (const nlohmann::json& entry : modelets)
    index.modelets.push_back(
        parse_entry(entry, fmt::format("{}: modelet {}", origin, index.modelets.size())));
  check_cover(index, origin);
  if (json.contains("encoder")) {
    const std::string where = origin + ": encoder";
    const nlohmann::json& encoder = member_at(json, "encoder", origin);
    if (string_at(encoder, "file", where) != kEncoderName)
      throw FormatError(where + ": its file is not '" + kEncoderName + "'");
    index.encoder = digest_at(encoder, where);
    index.shape.encoder = index.encoder->xxh3;
  }
  const nlohmann::json& extra = member_at(json, "extra", origin);
  if (!extra.is_object()) throw FormatError(origin + ": 'extra' is not an object");
  index.extra = extra.dump();
  return index;
}

CheckpointWriter::CheckpointWriter(const fs::path& checkpoints, uint64_t step)
    : parent_(checkpoints), partial_(checkpoints / partial_name(step)), step_(step) {
  std::error_code failure;
  fs::create_directories(partial_, failure);  // another process may have been faster, which is no failure
  if (failure) throw Error(partial_.string() + ": " + failure.message() + " (making a checkpoint folder)");
}

CheckpointEntry CheckpointWriter::write_modelet(const ModeletSpec& spec, std::span<const Tensor> tensors,
                                                const Metadata& metadata) const {
  return checkpoint_entry(spec, write_safetensors(partial_ / (spec.name() + kExtension), tensors, metadata));
}

FileDigest CheckpointWriter::write_encoder(std::span<const std::byte> state) const {
  AtomicFile file(partial_ / kEncoderName);
  file.write(state);
  file.commit();
  return {state.size(), xxh3_of(state)};
}

fs::path CheckpointWriter::folder() const { return checkpoint_of_step(parent_, step_); }

fs::path CheckpointWriter::commit(CheckpointIndex index, uint32_t keep) const {
  MODELET_CHECK(keep >= 1 && index.step == step_);
  std::ranges::sort(index.modelets, {}, [](const CheckpointEntry& e) { return e.spec.id; });
  check_cover(index, partial_.string());
  check_files(index);
  remove_other_files(index);
  write_index(partial_, index);
  const fs::path target = folder();
  publish(target);
  remove_leftovers();
  prune(parent_, step_, keep, index.best_step);
  return target;
}

void CheckpointWriter::check_files(const CheckpointIndex& index) const {
  for (const CheckpointEntry& entry : index.modelets) {
    std::error_code failure;
    const uint64_t bytes = fs::file_size(partial_ / entry.file, failure);
    if (failure || bytes != entry.digest.bytes)
      throw Error(fmt::format(
          "{}: the file that a node reported as written is {}; all nodes must see the same folder of the run "
          "(--out)",
          (partial_ / entry.file).string(), failure ? "not there" : "of another size"));
  }
}

// Temporary files of a crashed attempt at this step, or modelets of another partition.
void CheckpointWriter::remove_other_files(const CheckpointIndex& index) const {
  std::set<std::string> known;
  if (index.encoder) known.insert(kEncoderName);
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
  sync_folder(parent_);
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
  write_index(folder, index);
  prune(folder.parent_path(), index.step, keep, best_step);
}

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
    checkpoint.read_encoder();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::optional<fs::path> newest_intact_before(const fs::path& checkpoint) {
  const auto damaged = parse_step_folder(checkpoint);
  if (!damaged) return std::nullopt;
  std::vector<StepFolder> older = step_folders(checkpoint.parent_path());
  std::erase_if(
      older, [&](const StepFolder& f) { return f.kind != FolderKind::kComplete || f.step >= damaged->step; });
  std::ranges::sort(older, std::greater{}, &StepFolder::step);
  const auto intact = std::ranges::find_if(older, is_intact, &StepFolder::path);
  if (intact == older.end()) return std::nullopt;
  return intact->path;
}

fs::path run_of(const fs::path& path) {
  const fs::path given = path.has_filename() ? path : path.parent_path();  // "runs/a/" is "runs/a"
  const bool single = is_checkpoint(given);
  const fs::path folder = single ? given.parent_path() : given;
  if (folder.filename() == "checkpoints") return folder.parent_path();
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
  // As with a new checkpoint: hidden until it is whole.
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
  if (!newest) return;
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
  require_one_run(run, resumed);  // that may have ended since it was looked at
  return std::move(*lock);
}

namespace {

// A checkpoint without one of its files is malformed; that one cannot be opened says nothing about it.
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

SafetensorsFile Checkpoint::open_modelet(const ModeletSpec& spec) const {
  const auto identity = [](const ModeletSpec& s) { return std::tuple(s.layer, s.inputs, s.begin, s.end); };
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
