#include "shard/synth/synth_clicks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/system/file.h"
#include "shard/data/read/sample_reader.h"
#include "shard/inference/metrics.h"

namespace modelet::shard {
namespace {

constexpr int64_t kMissing = std::numeric_limits<int64_t>::min();
constexpr uint32_t kNoValue = std::numeric_limits<uint32_t>::max();
constexpr size_t kFactors = 4;
constexpr double kBias = -1.35;  // about every fourth row is a click, as in the public logs

// Keys after kStreamSynth; those of synth.cc lie below.
enum ClickStream : uint64_t { kRow = 100, kEffect, kFactor, kSalt };

// Columns with few values matter, those with many hardly do: the effect of a value that is seen a few times
// cannot be learned, and a good model should come close to the best AUC.
struct CategoryShape {
  uint32_t values;
  double effect;   // standard deviation of the log-odds
  double missing;  // share of the rows
};
constexpr std::array<CategoryShape, ClickGenerator::kCategories> kCategoryShapes = {{
    {1000, 0.25, 0},     {500, 0.25, 0},      {50000, 0.05, 0.04}, {20000, 0.05, 0.04}, {300, 0.25, 0},
    {20, 0.3, 0.12},     {10000, 0.05, 0},    {600, 0.25, 0},      {3, 0.3, 0},         {20000, 0.05, 0},
    {5000, 0.05, 0},     {50000, 0.05, 0.04}, {3000, 0.05, 0},     {26, 0.3, 0},        {8000, 0.05, 0},
    {50000, 0.05, 0.04}, {10, 0.3, 0},        {4000, 0.05, 0},     {2000, 0.05, 0.44},  {4, 0.3, 0.44},
    {50000, 0.05, 0.04}, {15, 0.3, 0.76},     {15, 0.3, 0},        {20000, 0.05, 0.04}, {80, 0.3, 0.44},
    {20000, 0.05, 0.44},
}};
constexpr double kCategoryZipf = 1.1;

struct IntegerShape {
  double mean, deviation;  // of the logarithm
  double slope, bump;      // log-odds by position on that scale, and by how far from its middle
  double missing, missing_effect;
};
constexpr std::array<IntegerShape, ClickGenerator::kIntegers> kIntegerShapes = {{
    {1.0, 1.0, 0.25, 0.0, 0.45, -0.2},
    {2.5, 1.8, 0.1, 0.1, 0, 0},
    {2.0, 1.5, 0.0, 0.0, 0.21, 0.1},
    {1.5, 0.9, -0.15, 0.0, 0.22, 0},
    {7.0, 2.0, -0.15, 0.1, 0.03, 0},
    {4.0, 1.5, -0.1, 0.0, 0.22, 0.1},
    {2.0, 1.2, 0.2, -0.1, 0.04, 0},
    {2.2, 1.0, 0.0, 0.15, 0, 0},
    {4.0, 1.3, 0.0, 0.0, 0.04, 0},
    {0.3, 0.6, 0.1, 0.0, 0.45, 0},
    {1.0, 0.8, 0.2, 0.0, 0.04, 0},
    {0.3, 0.7, 0.0, 0.0, 0.76, 0.1},
    {1.5, 1.0, -0.1, 0.0, 0.22, 0},
}};

// Columns that interact, and how strongly (standard deviation of the log-odds).
struct InteractionShape {
  bool with_integer;
  size_t first, second;
  double strength;
};
constexpr InteractionShape kInteractionShapes[] = {
    {false, 5, 13, 0.55},  {false, 16, 22, 0.55}, {false, 8, 24, 0.5},
    {false, 13, 16, 0.55}, {true, 19, 1, 0.4},    {true, 22, 6, 0.5},
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Log-odds of test rows, as predictions.
struct Scores {
  std::vector<float> positives, negatives;

  void add(bool clicked, double log_odds) {
    (clicked ? positives : negatives).push_back(static_cast<float>(log_odds));
  }
  double auc() const { return area_under_curve(positives, negatives); }
  double loss() const { return log_loss(positives, negatives); }
};

void write_truth(const ClickOptions& options, const ClickTruth& truth, const std::filesystem::path& path,
                 Existing existing) {
  const nlohmann::ordered_json json = {
      {"seed", options.seed},
      {"rows_train", options.rows_train},
      {"rows_test", options.rows_test},
      {"click_rate", truth.click_rate},
      {"auc", truth.auc},
      {"log_loss", truth.log_loss},
      {"additive_auc", truth.additive_auc},
      {"additive_log_loss", truth.additive_log_loss},
  };
  AtomicFile file(path, existing);
  file.write(json.dump(2) + "\n");
  file.commit();
}

}  // namespace

void validate(const ClickOptions& options) {
  const auto check = [](const char* what, uint64_t rows) {
    if (rows == 0 || rows >= kMaxCount)
      throw UsageError(std::string("synthetic clicks: ") + what + " rows must lie between 1 and 2^31 - 1");
  };
  check("training", options.rows_train);
  check("test", options.rows_test);
}

ClickGenerator::ClickGenerator(uint64_t seed)
    : seed_(seed), integers_(kIntegers), positions_(kIntegers), values_(kCategories) {
  for (uint64_t c = 0; c < kCategories; ++c) {
    const CategoryShape& shape = kCategoryShapes[c];
    Category category{ZipfTable(shape.values, kCategoryZipf), {}, 0};
    category.salt = static_cast<uint32_t>(Rng(seed, {kStreamSynth, kSalt, c}).next());
    Rng rng(seed, {kStreamSynth, kEffect, c});
    for (uint32_t value = 0; value < shape.values; ++value)
      category.effects.push_back(static_cast<float>(shape.effect) * rng.normal());
    categories_.push_back(std::move(category));
  }
  for (const InteractionShape& shape : kInteractionShapes) {
    const uint64_t which = interactions_.size();
    Interaction interaction{shape.with_integer, shape.first, shape.second, {}, {}};
    const size_t width = shape.with_integer ? 1 : kFactors;
    interaction.first_factors = centred_factors(categories_[shape.first], width, 2 * which);
    if (!shape.with_integer)
      interaction.second_factors = centred_factors(categories_[shape.second], width, 2 * which + 1);
    // An inner product of `width` pairs of standard normal numbers has the root of `width` as its deviation.
    const auto scale = static_cast<float>(shape.strength / std::sqrt(static_cast<double>(width)));
    for (float& factor : interaction.first_factors) factor *= scale;
    interactions_.push_back(std::move(interaction));
  }
}

// Normal numbers whose mean over the rows is zero.
std::vector<float> ClickGenerator::centred_factors(const Category& category, size_t width,
                                                   uint64_t which) const {
  Rng rng(seed_, {kStreamSynth, kFactor, which});
  const size_t values = category.effects.size();
  std::vector<float> factors(values * width);
  for (float& factor : factors) factor = rng.normal();
  for (size_t f = 0; f < width; ++f) {
    double mean = 0;
    for (uint32_t v = 0; v < values; ++v) mean += category.law.share(v) * factors[v * width + f];
    for (size_t v = 0; v < values; ++v) factors[v * width + f] -= static_cast<float>(mean);
  }
  return factors;
}

Click ClickGenerator::click(Split split, uint64_t row) {
  Rng rng(seed_, {kStreamSynth, kRow, static_cast<uint64_t>(split), row});
  draw_integers(rng);
  draw_categories(rng);
  Click click;
  click.additive_log_odds = kBias + additive_effects();
  click.log_odds = click.additive_log_odds + interactions();
  click.clicked = rng.uniform_double() < sigmoid(click.log_odds);
  write_line(click.clicked);
  click.line = line_;
  return click;
}

void ClickGenerator::draw_integers(Rng& rng) {
  for (size_t i = 0; i < kIntegers; ++i) {
    const IntegerShape& shape = kIntegerShapes[i];
    const double logarithm = shape.mean + shape.deviation * double{rng.normal()};
    const bool missing = rng.uniform_double() < shape.missing;
    integers_[i] = missing ? kMissing : static_cast<int64_t>(std::exp(logarithm));
    // Computed from the rounded number: the odds follow from what the row shows.
    positions_[i] =
        missing ? 0 : (std::log1p(static_cast<double>(integers_[i])) - shape.mean) / shape.deviation;
  }
}

void ClickGenerator::draw_categories(Rng& rng) {
  for (size_t c = 0; c < kCategories; ++c) {
    values_[c] = categories_[c].law.rank(rng.uniform_double());
    if (rng.uniform_double() < kCategoryShapes[c].missing) values_[c] = kNoValue;
  }
}

double ClickGenerator::additive_effects() const {
  double sum = 0;
  for (size_t i = 0; i < kIntegers; ++i) {
    const IntegerShape& shape = kIntegerShapes[i];
    const double position = positions_[i];
    sum += integers_[i] == kMissing ? shape.missing_effect
                                    : shape.slope * position + shape.bump * (position * position - 1);
  }
  for (size_t c = 0; c < kCategories; ++c)
    if (values_[c] != kNoValue) sum += double{categories_[c].effects[values_[c]]};
  return sum;
}

double ClickGenerator::interactions() const {
  double sum = 0;
  for (const Interaction& interaction : interactions_) {
    const uint32_t first = values_[interaction.first];
    if (first == kNoValue) continue;
    if (interaction.with_integer) {
      sum += double{interaction.first_factors[first]} * positions_[interaction.second];
      continue;
    }
    const uint32_t second = values_[interaction.second];
    if (second == kNoValue) continue;
    for (size_t f = 0; f < kFactors; ++f)
      sum += double{interaction.first_factors[first * kFactors + f]} *
             double{interaction.second_factors[second * kFactors + f]};
  }
  return sum;
}

void ClickGenerator::write_line(bool clicked) {
  line_.assign(1, clicked ? '1' : '0');
  std::array<char, 32> digits;
  for (const int64_t integer : integers_) {
    line_ += '\t';
    if (integer == kMissing) continue;
    line_.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), integer).ptr);
  }
  constexpr char kHex[] = "0123456789abcdef";
  for (size_t c = 0; c < kCategories; ++c) {
    line_ += '\t';
    if (values_[c] == kNoValue) continue;
    // A bijection of 32-bit words (odd factors, xor of higher bits), so that values stay different.
    uint32_t word = values_[c] * 0x9e3779b1u + categories_[c].salt;
    word = (word ^ (word >> 15)) * 0x85ebca6bu;
    for (int shift = 28; shift >= 0; shift -= 4) line_ += kHex[(word >> shift) & 15];
  }
  line_ += '\n';
}

ClickTruth write_clicks(const ClickOptions& options, const std::filesystem::path& folder,
                        const SynthProgress& progress, Existing existing) {
  constexpr uint64_t kRowsBetweenReports = 4096;
  constexpr size_t kFlushBytes = size_t{1} << 20;
  validate(options);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw Error(folder.string() + ": " + failure.message());
  ClickGenerator generator(options.seed);
  Scores scores, additive;
  uint64_t done = 0;
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const uint64_t rows = split == Split::kTrain ? options.rows_train : options.rows_test;
    AtomicFile file(folder / (split == Split::kTrain ? "train.tsv" : "test.tsv"), existing);
    std::string text;
    for (uint64_t row = 0; row < rows; ++row) {
      const Click click = generator.click(split, row);
      text += click.line;
      if (split == Split::kTest) {
        scores.add(click.clicked, click.log_odds);
        additive.add(click.clicked, click.additive_log_odds);
      }
      if (text.size() >= kFlushBytes) {
        file.write(text);
        text.clear();
      }
      if (progress && ++done % kRowsBetweenReports == 0)
        progress(done, options.rows_train + options.rows_test);
    }
    file.write(text);
    file.commit();
  }
  if (progress) progress(done, done);
  const ClickTruth truth{
      .click_rate = static_cast<double>(scores.positives.size()) / static_cast<double>(options.rows_test),
      .auc = scores.auc(),
      .log_loss = scores.loss(),
      .additive_auc = additive.auc(),
      .additive_log_loss = additive.loss(),
  };
  write_truth(options, truth, folder / "truth.json", existing);
  return truth;
}

}  // namespace modelet::shard
