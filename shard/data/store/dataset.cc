#include "shard/data/store/dataset.h"

#include <spdlog/fmt/fmt.h>
#include <xxhash.h>

#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/read/xmc_reader.h"
#include "shard/data/store/feature_rows.h"
#include "shard/data/store/label_spread.h"
#include "shard/data/store/text_cache.h"

namespace modelet::shard {
namespace {

namespace fs = std::filesystem;

std::string hex(uint64_t value) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kHex[(value >> shift) & 15];
  return text;
}

// A text, and what it was before anything of it was read.
class Text {
 public:
  explicit Text(const fs::path& path) : path_(path), identity_(file_identity(path)) {}

  // The name of its cache entry. It changes whenever the text, or what is made of it, may have changed.
  // `reading`: how the text is read.
  std::string entry(Normalize normalize, const std::string& reading) const {
    const std::string key = fmt::format("{}\n{}\n{}\n{}\n{}", fs::canonical(path_).string(), identity_,
                                        kPreparedVersion, spelling(normalize), reading);
    constexpr size_t kShownBytes = 128;  // of the text's name: names of files have a limit
    const std::string shown = path_.filename().string().substr(0, kShownBytes);
    return shown + "." + hex(XXH3_64bits(key.data(), key.size())) + ".mlt";
  }

  // Call it when all of it has been read: the text may have been read in several passes.
  void require_unchanged() const {
    if (file_identity(path_) != identity_)
      throw Error(path_.string() + ": was changed while it was read; start again when it is complete");
  }

 private:
  fs::path path_;
  std::string identity_;
};

std::optional<Dataset> find_in_cache(const std::optional<fs::path>& cache, const std::string& name,
                                     const LabelSelection& selection) {
  std::error_code failure;
  if (!cache || !fs::exists(*cache / name, failure)) return std::nullopt;
  try {
    Dataset data = Dataset::open(*cache / name, true, selection);
    note_use_of_cached(*cache / name);
    return data;
  } catch (const Error&) {  // damaged, or of a user who lets nobody read it: it is only a lost copy
    return std::nullopt;
  }
}

// How a text is read with the encoder of other data.
std::string reading_with(std::span<const std::byte> encoder) {
  return encoder.empty() ? "" : kReaderVersion + hex(XXH3_64bits(encoder.data(), encoder.size()));
}

using Prepare = std::function<void(const fs::path& prepared)>;

// What is prepared has a name, in `parent` or the folder for temporary files, only while it is opened.
Dataset open_once(const Text& text, const LabelSelection& selection, const Prepare& prepare,
                  const fs::path& parent = {}) {
  const TemporaryFolder folder("text", parent);
  prepare(folder.path() / "text.mlt");
  text.require_unchanged();
  return Dataset::open(folder.path() / "text.mlt", true, selection);
}

Dataset make_in_cache(const Text& text, const fs::path& entry, const LabelSelection& selection,
                      const Prepare& prepare) {
  prepare(entry);
  try {
    text.require_unchanged();
  } catch (...) {
    std::error_code ignored;
    fs::remove(entry, ignored);
    throw;
  }
  Dataset data = Dataset::open(entry, true, selection);
  note_use_of_cached(entry);
  return data;
}

// Opens the cache's entry `name` of a text; `prepare` makes it if it is not there. A cache that cannot be had is
// done without.
Dataset open_through_cache(const Text& text, const std::string& name, const LabelSelection& selection,
                           const Prepare& prepare) {
  const std::optional<fs::path> cache = text_cache_folder();
  if (auto found = find_in_cache(cache, name, selection)) return std::move(*found);
  try {
    if (cache) return make_in_cache(text, *cache / name, selection, prepare);
  } catch (const WriteError& error) {
    warn_no_cache(error.what());
  }
  return open_once(text, selection, prepare);
}

Dataset checked(Dataset data, const fs::path& path, Normalize normalize) {
  if (data.normalize() != normalize)
    throw UsageError(path.string() + ": was prepared with normalisation '" +
                     std::string(spelling(data.normalize())) + "', data.normalize asks for '" +
                     std::string(spelling(normalize)) + "': change that key, or prepare the file again");
  if (data.rows() == 0) throw FormatError(path.string() + ": holds no samples");
  return data;
}

// It differs from the fingerprint of a prepared file with the same samples.
uint64_t fingerprint_of(const CsrSamples& samples, std::span<const float> values) {
  const auto hash = [](auto items) { return XXH3_64bits(items.data(), items.size_bytes()); };
  const std::array<uint64_t, 7> facts = {
      samples.features,          samples.labels, hash(samples.feature_offsets),
      hash(samples.feature_ids), hash(values),   hash(samples.label_offsets),
      hash(samples.label_ids)};
  return hash(std::span(facts));
}

// `encoding` with the format that the text has.
Encoding known_encoding(const fs::path& text, Encoding encoding) {
  encoding.format = format_of(text, encoding);
  return encoding;
}

}  // namespace

Dataset Dataset::open(const std::filesystem::path& path, bool verify, const LabelSelection& selection) {
  Dataset data;
  data.file_ = MappedFile(path);
  data.view_ = parse_prepared(data.file_.bytes(), path.string(), verify, !selection.alone);
  const std::vector<NeuronRange> all = {{0, data.view_.labels}};
  data.labels_ = SampleLabels(data.view_, selection.neurons.value_or(all), path.string());
  return data;
}

Dataset Dataset::of(const CsrSamples& samples, Normalize normalize) {
  check_csr(samples);
  Dataset data;
  Made& made = data.made_;
  const LabelSpread spread(samples.labels);
  made.frequencies.resize(samples.labels);
  for (const uint32_t label : samples.label_ids) ++made.frequencies[spread.neuron(label)];
  for (size_t row = 0; row < samples.rows(); ++row)
    made.label_counts.push_back(
        static_cast<uint32_t>(samples.label_offsets[row + 1] - samples.label_offsets[row]));
  if (normalize != Normalize::kNone) {
    made.values.reserve(samples.values.size());
    for (size_t row = 0; row < samples.rows(); ++row) {
      const uint64_t first = samples.feature_offsets[row];
      const auto values = samples.values.subspan(first, samples.feature_offsets[row + 1] - first);
      const float scale = scale_of({.values = values}, normalize);
      for (const float value : values) made.values.push_back(value * scale);
    }
  }
  data.labels_ = SampleLabels(samples.label_offsets, samples.label_ids);
  PreparedView& view = data.view_;
  view.rows = samples.rows();
  view.labels = samples.labels;
  view.label_entries = samples.label_ids.size();
  view.normalize = normalize;
  view.features = {.shape = {std::string(kFirstBlock), samples.features},
                   .offsets = samples.feature_offsets,
                   .ids = samples.feature_ids,
                   .values = normalize == Normalize::kNone ? samples.values : made.values};
  view.label_counts = made.label_counts;
  view.frequencies = made.frequencies;
  view.fingerprint = fingerprint_of(samples, view.features.values);
  return data;
}

void prepare_training_data(const fs::path& text, Normalize normalize, const Encoding& encoding,
                           const fs::path& prepared, const PrepareProgress& progress, Existing existing) {
  const Encoding known = known_encoding(text, encoding);
  if (known.format == DataFormat::kXmc)
    return prepare_data(text, normalize, {}, prepared, progress, existing);
  FitProgress fitting;
  if (progress) fitting = [&](uint64_t bytes, double fraction) { progress(0, bytes, fraction); };
  const auto encoder = fit_encoder(known, text, fitting);
  prepare_text(*encoder->open_training(text), encoder->state(), prepared, normalize, progress, existing);
}

void prepare_data(const fs::path& text, Normalize normalize, std::span<const std::byte> encoder,
                  const fs::path& prepared, const PrepareProgress& progress, Existing existing) {
  refuse_other_kind(text, !encoder.empty());
  if (encoder.empty()) {
    XmcReader reader(text);
    prepare_text(reader, {}, prepared, normalize, progress, existing);
  } else {
    const auto restored = restore_encoder(encoder, "the encoder for " + text.string());
    prepare_text(*restored->open(text), encoder, prepared, normalize, progress, existing);
  }
}

Dataset load_training_data(const fs::path& path, Normalize normalize, const Encoding& encoding,
                           const LabelSelection& selection, const PrepareProgress& progress) {
  if (is_prepared(path)) return checked(Dataset::open(path, true, selection), path, normalize);
  const Text text(path);
  const Encoding known = known_encoding(path, encoding);
  const std::string reading = known.format == DataFormat::kXmc ? "" : kReaderVersion + to_toml(known);
  const auto prepare = [&](const fs::path& prepared) {
    prepare_training_data(path, normalize, known, prepared, progress);
  };
  return checked(open_through_cache(text, text.entry(normalize, reading), selection, prepare), path,
                 normalize);
}

Dataset load_dataset(const fs::path& path, Normalize normalize, std::span<const std::byte> encoder,
                     const LabelSelection& selection, const PrepareProgress& progress) {
  const uint64_t checksum = encoder.empty() ? 0 : XXH3_64bits(encoder.data(), encoder.size());
  if (is_prepared(path)) {
    Dataset data = Dataset::open(path, true, selection);
    if (data.encoder_checksum() != checksum)
      throw UsageError(
          path.string() +
          ": was not prepared with the encoder of the training data, so its ids mean other things: give the "
          "text itself, or prepare it with 'modelet data prepare --like TRAIN'");
    return checked(std::move(data), path, normalize);
  }
  const Text text(path);
  const auto prepare = [&](const fs::path& prepared) {
    prepare_data(path, normalize, encoder, prepared, progress);
  };
  const std::string name = text.entry(normalize, reading_with(encoder));
  return checked(open_through_cache(text, name, selection, prepare), path, normalize);
}

Dataset load_queries(const fs::path& path, Normalize normalize, std::span<const std::byte> encoder,
                     const PrepareProgress& progress) {
  if (is_prepared(path)) return load_dataset(path, normalize, encoder, {}, progress);
  const Text text(path);
  const std::optional<fs::path> cache = text_cache_folder();
  const std::string reading = reading_with(encoder);
  if (auto found = find_in_cache(cache, text.entry(normalize, reading), {}))
    return checked(std::move(*found), path, normalize);
  const auto prepare = [&](const fs::path& prepared) {
    prepare_data(path, normalize, encoder, prepared, progress);
  };
  try {
    if (cache) return checked(open_once(text, {}, prepare, *cache), path, normalize);
  } catch (const WriteError& error) {
    warn_no_cache(error.what());
  }
  return checked(open_once(text, {}, prepare), path, normalize);
}

std::vector<std::string> load_label_names(const std::filesystem::path& path, size_t labels, bool has_later_ones) {
  LineReader lines(path);
  std::vector<std::string> names;
  const std::string wanted = "one name a line for each of " + std::to_string(labels) + " labels is expected";
  for (std::string_view line; lines.next(line);) {
    if (names.size() == labels && has_later_ones) break;
    if (names.size() == labels) lines.fail("more lines than labels; " + wanted);
    names.emplace_back(line);
  }
  if (names.size() < labels)
    lines.fail("the file ends after " + std::to_string(names.size()) + " names; " + wanted);
  return names;
}

std::vector<uint32_t> count_labels(const Dataset& data) {
  const LabelSpread spread(data.labels());
  std::vector<uint32_t> counts(data.labels());
  for (uint32_t neuron = 0; neuron < data.labels(); ++neuron)
    counts[spread.label(neuron)] = data.frequencies()[neuron];
  return counts;
}

namespace {

double mean_of_rows(size_t entries, size_t rows) {
  return rows == 0 ? 0.0 : static_cast<double>(entries) / static_cast<double>(rows);
}

}  // namespace

DataShape describe_private_shape(const Experiment& experiment, const Dataset& test) {
  DataShape shape;
  shape.features = test.features();
  shape.labels = test.labels();
  shape.train_rows =
      uint64_t{experiment.cluster.epoch_steps} * experiment.train.batch * experiment.cluster.replicas;
  shape.test_rows = test.rows();
  shape.features_per_row = mean_of_rows(test.nonzeros(), test.rows());
  shape.labels_per_row = mean_of_rows(test.label_entries(), test.rows());
  shape.encoder = test.encoder_checksum();
  return shape;
}

DataShape describe_shape(const Dataset& train, const Dataset& test) {
  if (train.features() != test.features() || train.labels() != test.labels())
    throw UsageError("data.train has " + std::to_string(train.features()) + " features and " +
                     std::to_string(train.labels()) + " labels, data.test " +
                     std::to_string(test.features()) + " and " + std::to_string(test.labels()) +
                     ": both must count the same ids; correct the headers");
  DataShape shape;
  shape.features = train.features();
  shape.labels = train.labels();
  shape.train_rows = train.rows();
  shape.test_rows = test.rows();
  shape.features_per_row = mean_of_rows(train.nonzeros(), train.rows());
  shape.labels_per_row = mean_of_rows(train.label_entries(), train.rows());
  shape.encoder = train.encoder_checksum();
  shape.fingerprint = train.fingerprint();
  if (const FeatureRows rows = FeatureRows::of(train); !rows.all()) shape.occurring_features = rows.count();
  return shape;
}

}  // namespace modelet::shard
