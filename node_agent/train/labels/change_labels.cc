#include "node_agent/train/labels/change_labels.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/system/file.h"
#include "base/text/printable.h"
#include "base/version.h"
#include "node_agent/train/labels/neurons.h"
#include "shard/data/batch/split.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/prepared.h"
#include "shard/inference/label_set.h"
#include "shard/layers/scoring/classifiers.h"
#include "shard/modelet/checkpoint.h"
#include "shard/modelet/checkpoint/folders.h"
#include "shard/modelet/checkpoint_writer.h"
#include "shard/modelet/state.h"
#include "shard/modelet/take_neurons.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBackground = 32768;  // samples
constexpr uint32_t kTimes = 8;             // others that a sample counts for from which a model learns

// A run whose model is changed. Nothing of it changes before write().
class ChangedRun {
 public:
  ChangedRun(const fs::path& path, const ChangeOptions& options)
      : run_(folder_of(path)),
        newest_(shard::find_checkpoint(run_)),
        lock_(shard::take_run_folder(run_, newest_)),
        checkpoint_(shard::Checkpoint::open(shard::find_model(run_))),
        pool_(options.threads),
        encoder_(checkpoint_.read_encoder()) {
    const fs::path copy = run_ / shard::kLabelNamesFile;
    if (!encoder_.empty())
      names_ = shard::label_names(encoder_, checkpoint_.folder().string());
    else if (!experiment().data.labels.empty() && fs::exists(copy))
      names_ = shard::load_label_names(copy, shape().labels, true);
  }

  const shard::Checkpoint& checkpoint() const { return checkpoint_; }
  const Experiment& experiment() const { return checkpoint_.index().experiment; }
  const DataShape& shape() const { return checkpoint_.index().shape; }
  // UsageError if the model is one of towers.
  shard::Network& network() {
    if (!network_) network_ = load();
    return *network_;
  }
  std::span<const std::byte> encoder() const { return encoder_; }
  // Of a model with an encoder: how it reads text.
  Encoding encoding() const { return shard::encoder_options(shard::SafetensorsFile(encoder_, run_.string())); }
  const std::vector<std::string>& names() const { return names_; }
  // The same model with more labels, before it has any parameters.
  std::unique_ptr<shard::Network> with_labels(uint64_t labels) {
    DataShape larger = shape();
    larger.labels = labels;
    return make(larger);
  }

  // Writes the checkpoint: of `network`, with the names of all its labels; none: they have none.
  fs::path write(shard::Network& network, const std::vector<std::string>& names) {
    shard::CheckpointIndex index = checkpoint_.index();
    begin(index, index.removed_labels);
    index.shape = network.shape();
    const shard::CheckpointWriter writer(run_ / "checkpoints", index.step);
    index.modelets.clear();
    for (const auto& modelet : network.modelets()) index.modelets.push_back(shard::save_modelet(*modelet, writer));
    write_encoder(writer, names, index);
    return commit(writer, std::move(index), names);
  }
  // The same of the model as it is: of its files, whether it is one network or towers.
  fs::path write(const std::vector<std::string>& names, const std::vector<uint32_t>& removed) {
    shard::CheckpointIndex index = checkpoint_.index();
    begin(index, removed);
    const shard::CheckpointWriter writer(run_ / "checkpoints", index.step);
    add_files(checkpoint_, writer, names, index);
    const TemporaryFolder folder("labels", run_);  // beside the files, so that they get second names
    for (uint32_t task = 0; task < index.towers.size(); ++task) {
      const shard::Checkpoint tower = checkpoint_.open_tower(task);
      shard::CheckpointIndex own = tower.index();
      own.removed_labels = removed;
      const shard::CheckpointWriter of_tower(folder.path() / shard::tower_folder(task), own.step);
      add_files(tower, of_tower, names, own);
      index.towers[task] = writer.add_tower(of_tower.commit(std::move(own), 1), task);
    }
    if (index.division) writer.add(checkpoint_.folder() / shard::LabelDivision::kFile, shard::LabelDivision::kFile);
    return commit(writer, std::move(index), names);
  }

 private:
  void begin(shard::CheckpointIndex& index, std::vector<uint32_t> removed) const {
    index.modelet_version = kVersion;
    index.removed_labels = std::move(removed);
    index.step = index.best_step = shard::Checkpoint::open(newest_).index().step + 1;
  }

  void write_encoder(const shard::CheckpointWriter& writer, std::span<const std::string> names, shard::CheckpointIndex& index) const {
    if (encoder_.empty()) return;
    const std::vector<std::byte> state = shard::with_label_names(encoder_, names);
    index.encoder = writer.write_encoder(state);
    index.shape.encoder = shard::xxh3_of(state);
  }

  // Those of the modelets of a checkpoint, and the encoder.
  void add_files(const shard::Checkpoint& from, const shard::CheckpointWriter& writer, std::span<const std::string> names,
                 shard::CheckpointIndex& index) const {
    for (const shard::CheckpointEntry& entry : index.modelets) writer.add(from.folder() / entry.file, entry.file);
    write_encoder(writer, names, index);
  }

  fs::path commit(const shard::CheckpointWriter& writer, shard::CheckpointIndex index, const std::vector<std::string>& names) const {
    if (encoder_.empty() && !names.empty()) write_names(names);
    constexpr uint32_t kKept = 2;  // the checkpoint before stays, whatever the run keeps
    return writer.commit(std::move(index), std::max(kKept, experiment().train.keep_checkpoints));
  }

  static fs::path folder_of(const fs::path& path) {
    const fs::path run = shard::run_of(shard::find_checkpoint(path));
    if (run.empty())
      throw UsageError(path.string() + ": is a checkpoint outside of a run; give the folder of a run, in which the changed "
                                       "model becomes a new checkpoint");
    return run;
  }

  std::unique_ptr<shard::Network> make(const DataShape& shape) {
    return std::make_unique<shard::Network>(experiment(), shape, partition_model(experiment(), shape), true, pool_,
                                            shard::stored_feature_rows(checkpoint_));
  }

  std::unique_ptr<shard::Network> load() {
    if (!checkpoint_.index().towers.empty())
      throw UsageError(run_.string() + ": a model of towers gets no more labels, and learns nothing more of those that it has; "
                                       "they can be removed and renamed. Train it with model.towers = 1, or train it anew");
    auto network = make(shape());
    for (const auto& modelet : network->modelets()) shard::restore_modelet(*modelet, checkpoint_);
    network->set_scoring();
    return network;
  }

  void write_names(std::span<const std::string> names) const {
    std::string text;
    for (const std::string& name : names) text += name + '\n';
    AtomicFile file(run_ / shard::kLabelNamesFile);
    file.write(text);
    file.commit();
  }

  const fs::path run_, newest_;
  const FileLock lock_;
  const shard::Checkpoint checkpoint_;
  ThreadPool pool_;
  std::unique_ptr<shard::Network> network_;  // null until it is asked for
  const std::vector<std::byte> encoder_;
  std::vector<std::string> names_;  // [labels]; empty: they have none
};

// ---- new labels

uint64_t hash_of(const shard::Sample& sample) {
  const uint64_t parts[] = {shard::xxh3_of(std::as_bytes(sample.features)), shard::xxh3_of(std::as_bytes(sample.values))};
  return shard::xxh3_of(std::as_bytes(std::span(parts)));
}

// All names that the model has with those of `samples` that it does not know.
std::vector<std::string> names_with(const ChangedRun& run, const fs::path& samples) {
  std::vector<std::string> names = run.names();
  if (run.encoding().format == DataFormat::kWords)
    throw UsageError("this is a model of running text, whose labels are the words of its vocabulary; train it with more text");
  if (shard::is_prepared(samples))
    throw UsageError(samples.string() + ": is a prepared file, which has only labels that a model knows; give the text");
  const auto fitted = shard::fit_encoder(run.encoding(), samples);
  const std::unordered_set<std::string> known(names.begin(), names.end());
  for (std::string& name : shard::label_names(fitted->state(), samples.string()))
    if (!known.contains(name)) names.push_back(std::move(name));
  return names;
}

// Of XMC text, whose labels are numbers.
std::vector<std::string> names_with(const ChangedRun& run, uint64_t labels, const fs::path& file) {
  std::vector<std::string> names = run.names();
  if (names.empty()) {
    if (!file.empty()) throw UsageError("--names " + file.string() + ": the labels of this model have no names");
    return names;
  }
  const uint64_t added = labels - run.shape().labels;
  if (!file.empty()) {
    const auto more = shard::load_label_names(file, added);
    names.insert(names.end(), more.begin(), more.end());
  }
  for (uint64_t label = names.size(); label < labels; ++label) names.push_back(std::to_string(label));
  return names;
}

// Writes first the samples that have labels which are to be fitted, then those of the training; with these labels alone or, if
// labels compete, with all.
struct Mixed {
  uint64_t samples = 0, background = 0;
};
template <class IsOwn>
Mixed mix(const shard::Dataset& given, const shard::Dataset* background, bool competing, const IsOwn& is_own, const fs::path& file) {
  Mixed mixed;
  shard::PreparedWriter writer(file, given.features(), given.labels(), given.normalize());
  std::unordered_set<uint64_t> own;
  std::vector<uint32_t> kept;
  const auto only_own = [&](std::span<const uint32_t> labels) {
    kept.clear();
    std::ranges::copy_if(labels, std::back_inserter(kept), is_own);
    return std::span<const uint32_t>(kept);
  };
  for (size_t row = 0; row < given.rows(); ++row) {
    shard::Sample sample = given.sample(row);
    if (std::ranges::none_of(sample.labels, is_own)) continue;
    if (!competing) sample.labels = only_own(sample.labels);
    writer.add(sample);
    own.insert(hash_of(sample));
    ++mixed.samples;
  }
  if (background != nullptr) {
    const std::vector<uint32_t> rows = shard::all_rows(background->rows());
    for (const uint32_t row : shard::spread_out(rows, std::min(rows.size(), kMostBackground))) {
      shard::Sample sample = background->sample(row);
      if (own.contains(hash_of(sample))) continue;  // the label's own sample is no negative
      if (!competing) sample.labels = only_own(sample.labels);
      writer.add(sample);
      ++mixed.background;
    }
  }
  writer.finish();
  return mixed;
}

std::optional<shard::Dataset> background_of(const ChangedRun& run, const AddOptions& options) {
  if (!options.fit) return std::nullopt;
  const fs::path file = options.background.empty() ? fs::path(run.experiment().data.train) : options.background;
  if (options.background.empty() && !fs::exists(file)) return std::nullopt;
  shard::Dataset data = shard::load_dataset(file, run.experiment().data.normalize, run.encoder());
  if (data.features() != run.shape().features)
    throw UsageError(fmt::format("{}: has {} features, and the model {}", file.string(), data.features(), run.shape().features));
  return data;
}

}  // namespace

nlohmann::json to_json(const ChangedLabels& changed, std::string_view what) {
  return {{"event", "labels"}, {"what", what}, {"checkpoint", changed.checkpoint.string()}, {"changed", changed.changed},
          {"labels", changed.labels}, {"samples", changed.samples}, {"background", changed.background}};
}

ChangedLabels add_labels(const fs::path& path, const fs::path& samples, const AddOptions& options) {
  ChangedRun run(path, options);
  run.network();  // not for towers
  const uint64_t known = run.shape().labels;
  for (const auto& [key, set] : {std::pair("exclude_own", run.experiment().model.exclude_own),
                                 std::pair("own_weight", run.experiment().model.own_weight > 0)})
    if (set)
      throw UsageError(std::string("features and labels of this model are the same items (model.") + key +
                       "), and it gets no more of them");
  std::vector<std::string> names;
  std::vector<std::byte> encoder;
  if (!run.encoder().empty()) {
    names = names_with(run, samples);
    encoder = shard::with_label_names(run.encoder(), names);
  }
  const shard::Dataset given = shard::load_queries(samples, run.experiment().data.normalize, encoder);
  if (given.features() != run.shape().features)
    throw UsageError(fmt::format("{}: has {} features, and the model {}", samples.string(), given.features(), run.shape().features));
  if (encoder.empty()) names = names_with(run, given.labels(), options.names);
  if (given.labels() <= known)
    throw UsageError(fmt::format("{}: has no label that the model in {} does not have", samples.string(), path.string()));
  const uint64_t added = given.labels() - known;
  const std::vector<uint32_t> counts = shard::count_labels(given);
  const auto without = static_cast<uint64_t>(std::count(counts.begin() + static_cast<std::ptrdiff_t>(known), counts.end(), 0u));
  if (without > added / 2)  // each would cost a neuron
    throw UsageError(fmt::format("{}: {} of its {} new labels have no sample; does its header count too many labels?",
                                 samples.string(), without, added));

  const TemporaryFolder folder("labels");
  const fs::path file = folder.path() / "samples.mlt";
  const auto background = background_of(run, options);
  const bool competing = run.experiment().model.loss == Loss::kSoftmax;
  const auto is_new = [known](uint32_t label) { return label >= known; };
  const Mixed mixed = mix(given, background ? &*background : nullptr, competing, is_new, file);
  const shard::Dataset mixture = shard::Dataset::open(file);
  const auto fresh = neurons_of_new_labels(run.checkpoint(), run.network(), mixture, options.progress);
  shard::Network* const parts[] = {&run.network(), fresh.get()};
  if (mixed.background > 0 && competing) {
    const auto all = run.with_labels(given.labels());
    join_labels(*all, parts, run.checkpoint());
    fit_rows(*all, mixture, shard::all_rows(mixture.rows()), options.progress);
    shard::Network* const fitted[] = {all.get()};
    take_labels(*fresh, fitted);
  } else if (mixed.background > 0) {
    fit_rows(*fresh, mixture, shard::all_rows(mixture.rows()), options.progress);
  }
  if (shard::has_fitted_classifiers(run.network().scoring())) fit_classifiers_of(*fresh, mixture, options.progress);

  const auto whole = run.with_labels(given.labels());
  join_labels(*whole, parts, run.checkpoint());
  return {.checkpoint = run.write(*whole, names),
          .labels = given.labels(),
          .changed = added,
          .samples = mixed.samples,
          .background = mixed.background};
}

ChangedLabels learn(const fs::path& path, const fs::path& samples, const AddOptions& options) {
  ChangedRun run(path, options);
  run.network();  // not for towers
  const shard::Dataset given = shard::load_queries(samples, run.experiment().data.normalize, run.encoder());
  if (given.features() != run.shape().features || given.labels() != run.shape().labels)
    throw UsageError(fmt::format("{}: has {} features and {} labels, and the model {} and {}", samples.string(), given.features(),
                                 given.labels(), run.shape().features, run.shape().labels));
  const auto background = background_of(run, options);
  if (!background)
    throw UsageError(fmt::format("{}: the training data is not there; --background FILE names samples of it, without which the "
                                 "model would forget what it knows of these labels",
                                 run.experiment().data.train));
  std::vector<bool> is_given(given.labels());
  for (size_t row = 0; row < given.rows(); ++row)
    for (const uint32_t label : given.sample(row).labels) is_given[label] = true;
  std::vector<uint32_t> labels;
  for (uint32_t label = 0; label < is_given.size(); ++label)
    if (is_given[label]) labels.push_back(label);
  if (labels.empty()) throw UsageError(fmt::format("{}: has no label that the model in {} has", samples.string(), path.string()));
  for (const uint32_t label : run.checkpoint().index().removed_labels)
    if (is_given[label])
      throw UsageError(fmt::format("{}: has samples of the label '{}', which was removed and is never again an answer: take them out",
                                   samples.string(), run.names().empty() ? std::to_string(label) : printable(run.names()[label])));

  const TemporaryFolder folder("learn");
  const fs::path file = folder.path() / "samples.mlt";
  const bool competing = run.experiment().model.loss == Loss::kSoftmax;
  const Mixed mixed = mix(given, &*background, competing, [&](uint32_t label) { return is_given[label]; }, file);
  const shard::Dataset mixture = shard::Dataset::open(file);
  std::vector<uint32_t> rows = shard::all_rows(mixture.rows());
  for (uint32_t time = 1; time < kTimes; ++time)
    for (uint32_t row = 0; row < mixed.samples; ++row) rows.push_back(row);
  const uint64_t changed = labels.size();
  const auto fitted = neurons_of_labels(run.checkpoint(), run.network(), std::move(labels), mixture, mixed.samples);
  shard::Network* const parts[] = {fitted.get(), &run.network()};
  const auto whole = run.with_labels(given.labels());
  if (competing) {
    join_labels(*whole, parts, run.checkpoint());
    fit_rows(*whole, mixture, std::move(rows), options.progress);
    shard::Network* const all[] = {whole.get()};
    take_labels(*fitted, all);
  } else {
    fit_rows(*fitted, mixture, std::move(rows), options.progress);
  }
  if (shard::has_fitted_classifiers(run.network().scoring())) fit_classifiers_of(*fitted, mixture, options.progress);
  const auto result = run.with_labels(given.labels());
  join_labels(*result, parts, run.checkpoint());
  return {.checkpoint = run.write(*result, run.names()),
          .labels = given.labels(),
          .changed = changed,
          .samples = mixed.samples,
          .background = mixed.background};
}

ChangedLabels remove_labels(const fs::path& path, std::span<const std::string> labels, const ChangeOptions& options) {
  ChangedRun run(path, options);
  const shard::LabelNumbers numbers(run.names(), run.shape().labels);
  std::vector<uint32_t> removed = run.checkpoint().index().removed_labels;
  for (const std::string& label : labels) {
    const uint32_t number = numbers.parse(label);
    if (std::ranges::find(removed, number) != removed.end())
      throw UsageError(fmt::format("label '{}' was removed already", label));
    removed.push_back(number);
  }
  if (removed.size() >= run.shape().labels) throw UsageError("no label would be left");
  std::ranges::sort(removed);
  return {.checkpoint = run.write(run.names(), removed),
          .labels = run.shape().labels,
          .changed = labels.size()};
}

ChangedLabels rename_label(const fs::path& path, const std::string& from, const std::string& to, const ChangeOptions& options) {
  ChangedRun run(path, options);
  if (run.names().empty()) throw UsageError("the labels of this model have no names: they are numbers");
  if (to.empty() || to.find_first_of("\r\n") != std::string::npos) throw UsageError("a name is text in one line");
  const shard::LabelNumbers numbers(run.names(), run.shape().labels);
  std::vector<std::string> names = run.names();
  std::string& name = names[numbers.of(from)];
  if (std::ranges::find(names, to) != names.end()) throw UsageError(fmt::format("another label has the name '{}'", to));
  name = to;
  return {.checkpoint = run.write(names, run.checkpoint().index().removed_labels),
          .labels = run.shape().labels,
          .changed = 1};
}

}  // namespace modelet::agent
