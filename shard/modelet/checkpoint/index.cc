#include "shard/modelet/checkpoint/index.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/experiment/towers.h"
#include "base/text/strict_json.h"
#include "shard/data/store/label_division.h"

namespace modelet::shard {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kFormat = "modelet-checkpoint";
constexpr uint64_t kVersion = 2, kSeedSpreadVersion = 1;  // in that version the run's seed placed the labels
constexpr const char* kExtension = ".safetensors";
constexpr int kIndexDepth = 16;  // of index.json; the trainer's `extra` may nest a little
constexpr uint64_t kMaxLayers = 64;
constexpr std::array<std::string_view, 3> kKinds = {"input", "hidden", "output"};

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
  // Names must follow from the range. This also keeps files inside the folder.
  entry.file = string_at(json, "file", where);
  if (string_at(json, "name", where) != spec.name() || entry.file != modelet_file(spec))
    throw FormatError(where + ": name and file do not belong to layer and range; expected '" + spec.name() +
                      "'");
  entry.digest = digest_at(json, where);
  return entry;
}

// Memory is planned and reserved by these numbers.
void require_plausible(const DataShape& shape, const std::string& origin) {
  constexpr uint64_t kMost = uint64_t{1} << 32;
  const auto is_mean = [](double mean, uint64_t of) { return mean >= 0 && mean <= static_cast<double>(of); };
  if (std::max({shape.features, shape.labels, shape.train_rows, shape.test_rows}) > kMost ||
      !is_mean(shape.features_per_row, shape.features) || !is_mean(shape.labels_per_row, shape.labels))
    throw FormatError(origin + ": 'data_shape' has a count above 2^32, or a mean that no data has");
}

}  // namespace

std::string tower_folder(uint32_t task) { return fmt::format("tower-{:03}", task); }

std::string modelet_file(const ModeletSpec& spec) { return spec.name() + kExtension; }

// Ids count up, layers too, the ranges of a layer follow each other, and each layer reads the whole layer
// below.
void check_cover(const CheckpointIndex& index, const std::string& origin) {
  const auto& modelets = index.modelets;
  const auto fail = [&](size_t i, const char* problem) {
    throw FormatError(fmt::format("{}: modelet {}: {}", origin, i, problem));
  };
  const uint32_t tasks = tower_tasks(index.experiment.model);
  if (index.towers.size() != (tasks == 1 ? 0 : tasks) || index.division.has_value() != (tasks > 1) ||
      (tasks > 1 && !modelets.empty()))
    throw FormatError(fmt::format("{}: it has {} towers, where model.towers and model.divisions make {}", origin,
                                  index.towers.size(), tasks));
  if (tasks > 1) return;
  if (modelets.empty()) throw FormatError(origin + ": no modelets");
  uint64_t inputs = index.shape.input_rows(), neurons = 0;  // of the current layer, so far
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

CheckpointEntry checkpoint_entry(const ModeletSpec& spec, const FileDigest& digest) {
  return {spec, modelet_file(spec), digest};
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
  if (shape.occurring_features > 0) json["data_shape"]["occurring_features"] = shape.occurring_features;
  if (shape.all_labels > 0) json["data_shape"]["all_labels"] = shape.all_labels;
  if (!index.removed_labels.empty()) json["removed_labels"] = index.removed_labels;
  for (const CheckpointEntry& entry : index.modelets) json["modelets"].push_back(entry_json(entry));
  const auto file_json = [](const char* name, const FileDigest& digest) -> nlohmann::ordered_json {
    return {{"file", name}, {"bytes", digest.bytes}, {"xxh3", hex64_text(digest.xxh3)}};
  };
  for (const TowerEntry& tower : index.towers) json["towers"].push_back(file_json(tower.folder.c_str(), tower.index));
  if (index.division) json["division"] = file_json(LabelDivision::kFile, *index.division);
  if (index.encoder) json["encoder"] = file_json(kEncoderName, *index.encoder);
  return json.dump(1) + "\n";
}

// Leaves out what is added to an index later: it says nothing about the model.
uint64_t fingerprint_of(CheckpointIndex index) {
  index.best_step = 0;
  index.extra = "{}";
  const std::string text = format_checkpoint_index(index);
  return xxh3_of(std::as_bytes(std::span(text)));
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
    index.experiment = parse_recorded_experiment(string_at(json, "experiment", origin), path);
  } catch (const UsageError& e) {
    throw FormatError(std::string("in the checkpoint's experiment: ") + e.what());
  }
  const nlohmann::json& shape = member_at(json, "data_shape", origin);
  index.shape = {unsigned_at(shape, "features", origin),       unsigned_at(shape, "labels", origin),
                 unsigned_at(shape, "train_rows", origin),     unsigned_at(shape, "test_rows", origin),
                 number_at(shape, "features_per_row", origin), number_at(shape, "labels_per_row", origin)};
  require_plausible(index.shape, origin);
  // Earlier programs did not keep it.
  if (shape.contains("fingerprint")) index.shape.fingerprint = hex64_at(shape, "fingerprint", origin);
  if (shape.contains("occurring_features"))  // else all have rows
    index.shape.occurring_features = unsigned_at(shape, "occurring_features", origin);
  if (shape.contains("all_labels")) index.shape.all_labels = unsigned_at(shape, "all_labels", origin);
  if (index.shape.all_labels > uint64_t{1} << 32 ||
      (index.shape.all_labels > 0 && index.shape.all_labels < index.shape.labels))
    throw FormatError(fmt::format("{}: a tower has {} of {} labels", origin, index.shape.labels,
                                  index.shape.all_labels));
  if (index.shape.occurring_features > index.shape.features)
    throw FormatError(fmt::format("{}: 'occurring_features' is {}, more than the {} features", origin,
                                  index.shape.occurring_features, index.shape.features));
  index.shape.label_seed =
      version == kSeedSpreadVersion ? index.experiment.train.seed : unsigned_at(shape, "label_seed", origin);
  const nlohmann::json& modelets = member_at(json, "modelets", origin);
  if (!modelets.is_array()) throw FormatError(origin + ": 'modelets' is not a list");
  for (const nlohmann::json& entry : modelets)
    index.modelets.push_back(
        parse_entry(entry, fmt::format("{}: modelet {}", origin, index.modelets.size())));
  // What a name must be follows from its place. This also keeps files inside the folder.
  const auto file_at = [](const nlohmann::json& entry, const std::string& name, const std::string& where) {
    if (string_at(entry, "file", where) != name) throw FormatError(where + ": its file is not '" + name + "'");
    return digest_at(entry, where);
  };
  if (json.contains("towers")) {
    const nlohmann::json& towers = member_at(json, "towers", origin);
    if (!towers.is_array()) throw FormatError(origin + ": 'towers' is not a list");
    for (const nlohmann::json& entry : towers) {
      const auto task = static_cast<uint32_t>(index.towers.size());
      index.towers.push_back(
          {tower_folder(task), file_at(entry, tower_folder(task), fmt::format("{}: tower {}", origin, task))});
    }
  }
  if (json.contains("removed_labels")) {
    const nlohmann::json& removed = json["removed_labels"];
    if (!removed.is_array()) throw FormatError(origin + ": 'removed_labels' is not a list");
    const uint64_t labels = std::max(index.shape.labels, index.shape.all_labels);
    for (const nlohmann::json& label : removed) {
      if (!label.is_number_unsigned() || label.get<uint64_t>() >= labels ||
          (!index.removed_labels.empty() && label.get<uint64_t>() <= index.removed_labels.back()))
        throw FormatError(fmt::format("{}: 'removed_labels' is not a list of ascending numbers below {}", origin, labels));
      index.removed_labels.push_back(label.get<uint32_t>());
    }
  }
  if (json.contains("division"))
    index.division = file_at(json["division"], LabelDivision::kFile, origin + ": division");
  check_cover(index, origin);
  if (json.contains("encoder")) {
    index.encoder = file_at(json["encoder"], kEncoderName, origin + ": encoder");
    index.shape.encoder = index.encoder->xxh3;
  }
  const nlohmann::json& extra = member_at(json, "extra", origin);
  if (!extra.is_object()) throw FormatError(origin + ": 'extra' is not an object");
  index.extra = extra.dump();
  return index;
}

}  // namespace modelet::shard
