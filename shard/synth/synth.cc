#include "shard/synth/synth.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/file.h"
#include "shard/data/read/xmc_reader.h"
#include "shard/data/store/prepared.h"

namespace modelet::shard {
namespace {

// Words of natural language follow Zipf's law with about this exponent.
constexpr double kFeatureZipf = 1;

// Keys after kStreamSynth.
enum SynthStream : uint64_t {
  kRowLabels,
  kRowFeatures,
  kLabelFeatures,
  kLabelOrder,
  kFeatureOrder,
  kFamilyFeatures
};

std::vector<uint32_t> permutation(uint64_t count, Rng rng) {
  std::vector<uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0u);
  for (size_t left = ids.size(); left > 1; --left)
    std::swap(ids[left - 1], ids[rng.below(static_cast<uint32_t>(left))]);
  return ids;
}

// Whole number near `mean`, uniform between `low` and `2 mean - low`, at most `limit`.
uint64_t draw_count(Rng& rng, double mean, double low, uint64_t limit) {
  const double value = low + rng.uniform_double() * 2 * (mean - low);
  return std::min<uint64_t>(limit, static_cast<uint64_t>(std::max(1.0, std::round(value))));
}

void require(bool condition, const std::string& what) {
  if (!condition) throw UsageError("synthetic data: " + what);
}

// XMC text that reads back as the same floats.
class XmcTextWriter {
 public:
  XmcTextWriter(const std::filesystem::path& path, uint64_t rows, uint64_t features, uint64_t labels,
                Existing existing)
      : file_(path, existing) {
    append(rows);
    text_ += ' ';
    append(features);
    text_ += ' ';
    append(labels);
    text_ += '\n';
  }

  void add(const Sample& sample) {
    for (size_t i = 0; i < sample.labels.size(); ++i) {
      if (i > 0) text_ += ',';
      append(sample.labels[i]);
    }
    for (size_t i = 0; i < sample.features.size(); ++i) {
      text_ += ' ';
      append(sample.features[i]);
      text_ += ':';
      append(sample.values[i]);
    }
    text_ += '\n';
    constexpr size_t kFlushBytes = size_t{1} << 20;
    if (text_.size() < kFlushBytes) return;
    file_.write(text_);
    text_.clear();
  }

  void finish() {
    file_.write(text_);
    file_.commit();
  }

 private:
  template <class T>
  void append(T number) {
    std::array<char, 32> digits;
    const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), number);
    text_.append(digits.data(), result.ptr);
  }

  AtomicFile file_;
  std::string text_;
};

}  // namespace

void validate(const SynthOptions& options) {
  require(options.features > 0 && options.features < kMaxCount, "features must lie between 1 and 2^31 - 1");
  require(options.labels > 0 && options.labels < kMaxCount, "labels must lie between 1 and 2^31 - 1");
  require(options.rows_train > 0 && options.rows_train < kMaxCount,
          "training rows must lie between 1 and 2^31 - 1");
  require(options.rows_test > 0 && options.rows_test < kMaxCount,
          "test rows must lie between 1 and 2^31 - 1");
  // A row is drawn until it has its number of different features: more than half of all would take long.
  require(
      options.features_per_row >= 1 && options.features_per_row <= static_cast<double>(options.features) / 2,
      "features per row must lie between 1 and half of all features");
  require(
      options.labels_per_row >= 1 && options.labels_per_row <= static_cast<double>(options.labels) / 2 + 0.5,
      "labels per row must lie between 1 and half of all labels");
  require(options.zipf > 0 && options.zipf <= 4, "the Zipf exponent must lie between 0 and 4");
  require(options.noise >= 0 && options.noise <= 1, "the noise share must lie between 0 and 1");
  require(options.family >= 1 && options.family <= options.labels,
          "a family must have between 1 and all of the labels");
  require(options.shared >= 0 && options.shared < 1,
          "the share of features that a family has in common must be at least 0 and below 1");
}

std::vector<std::string> synth_preset_names() { return {"amazon-670k", "confusable"}; }

SynthOptions synth_preset(const std::string& name) {
  SynthOptions options;
  if (name == "confusable") {
    options.rows_train = 100000;
    options.rows_test = 10000;
    options.features = 20000;
    options.labels = 20000;
    options.family = 20;
    return options;
  }
  require(name == "amazon-670k", "unknown preset '" + name + "', there are: amazon-670k, confusable");
  // The shape of Amazon-670K in the Extreme Classification Repository.
  options.rows_train = 490449;
  options.rows_test = 153025;
  options.features = 135909;
  options.labels = 670091;
  options.features_per_row = 75;
  options.labels_per_row = 5;
  options.zipf = 0.6;  // most labels occur a few times, as there
  return options;
}

ZipfTable::ZipfTable(uint64_t count, double exponent) : cumulative_(count) {
  double sum = 0;
  for (size_t i = 0; i < cumulative_.size(); ++i)
    cumulative_[i] = sum += std::pow(static_cast<double>(i + 1), -exponent);
  for (double& c : cumulative_) c /= sum;
}

uint32_t ZipfTable::rank(double u) const {
  return static_cast<uint32_t>(std::upper_bound(cumulative_.begin(), cumulative_.end() - 1, u) -
                               cumulative_.begin());
}

SynthGenerator::SynthGenerator(const SynthOptions& options)
    : options_(options),
      // Twice as many as a row needs of each of its labels, so that rows with the same labels differ.
      features_per_label_(
          static_cast<uint32_t>(std::min(static_cast<double>(options.features),
                                         std::ceil(2 * options.features_per_row / options.labels_per_row)))),
      family_features_(options.family == 1 ? 0 : static_cast<uint32_t>(options.shared * features_per_label_)),
      label_law_(options.labels, options.zipf),
      feature_law_(options.features, kFeatureZipf),
      label_of_rank_(permutation(options.labels, Rng(options.seed, {kStreamSynth, kLabelOrder}))),
      feature_of_rank_(permutation(options.features, Rng(options.seed, {kStreamSynth, kFeatureOrder}))),
      weight_(options.features),
      seen_in_(options.features, 0) {
  const double scale = 1 / std::log(2.0 + static_cast<double>(options.features));
  for (size_t rank = 0; rank < feature_of_rank_.size(); ++rank)
    weight_[feature_of_rank_[rank]] = static_cast<float>(scale * std::log(2.0 + static_cast<double>(rank)));
}

Sample SynthGenerator::sample(Split split, uint64_t row) {
  ++samples_;
  draw_labels(static_cast<uint64_t>(split), row);
  draw_features(static_cast<uint64_t>(split), row);
  return {features_, values_, labels_};
}

void SynthGenerator::draw_labels(uint64_t split, uint64_t row) {
  Rng rng(options_.seed, {kStreamSynth, kRowLabels, split, row});
  const uint64_t count = draw_count(rng, options_.labels_per_row, 1, options_.labels);
  // Frequent labels come up more than once: tries a few more times, then accepts fewer labels.
  constexpr uint64_t kTries = 4;
  labels_.clear();
  for (uint64_t i = 0; i < kTries * count && labels_.size() < count; ++i) {
    const uint32_t label = label_of_rank_[label_law_.rank(rng.uniform_double())];
    if (std::find(labels_.begin(), labels_.end(), label) == labels_.end()) labels_.push_back(label);
  }
  std::sort(labels_.begin(), labels_.end());
}

void SynthGenerator::draw_features(uint64_t split, uint64_t row) {
  Rng rng(options_.seed, {kStreamSynth, kRowFeatures, split, row});
  const uint64_t count =
      draw_count(rng, options_.features_per_row, options_.features_per_row / 2, options_.features);
  constexpr uint64_t kTries = 8;
  features_.clear();
  for (uint64_t i = 0; i < kTries * count && features_.size() < count; ++i) {
    uint32_t feature = 0;
    if (rng.uniform_double() < options_.noise) {
      feature = feature_of_rank_[feature_law_.rank(rng.uniform_double())];
    } else {
      const uint32_t label = labels_[rng.below(static_cast<uint32_t>(labels_.size()))];
      const uint32_t which = rng.below(features_per_label_);
      const bool of_family = which < family_features_;
      feature = Rng(options_.seed, {kStreamSynth, of_family ? kFamilyFeatures : kLabelFeatures,
                                    of_family ? label / options_.family : label, which})
                    .below(static_cast<uint32_t>(options_.features));
    }
    if (std::exchange(seen_in_[feature], samples_) != samples_) features_.push_back(feature);
  }
  std::sort(features_.begin(), features_.end());
  values_.clear();
  double squares = 0;
  for (const uint32_t feature : features_) {
    const float value = weight_[feature] * (0.5f + rng.uniform());
    squares += double{value} * double{value};
    values_.push_back(value);
  }
  for (float& value : values_) value = static_cast<float>(value / std::sqrt(squares));
}

void write_synth(const SynthOptions& options, const std::filesystem::path& folder, bool text,
                 const SynthProgress& progress, Existing existing) {
  constexpr uint64_t kRowsBetweenReports = 4096;
  validate(options);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw Error(folder.string() + ": " + failure.message());
  SynthGenerator generator(options);
  const uint64_t total = options.rows_train + options.rows_test;
  uint64_t done = 0;
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const uint64_t rows = split == Split::kTrain ? options.rows_train : options.rows_test;
    const std::filesystem::path stem = folder / (split == Split::kTrain ? "train" : "test");
    PreparedWriter prepared(stem.string() + ".mlt", options.features, options.labels, Normalize::kNone,
                            existing);
    std::optional<XmcTextWriter> xmc;
    if (text) xmc.emplace(stem.string() + ".txt", rows, options.features, options.labels, existing);
    for (uint64_t row = 0; row < rows; ++row) {
      const Sample sample = generator.sample(split, row);
      prepared.add(sample);
      if (xmc) xmc->add(sample);
      if (progress && ++done % kRowsBetweenReports == 0) progress(done, total);
    }
    prepared.finish();
    if (xmc) xmc->finish();
  }
  if (progress) progress(total, total);
}

}  // namespace modelet::shard
