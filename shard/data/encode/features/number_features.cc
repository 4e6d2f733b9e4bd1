#include "shard/data/encode/features/number_features.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace modelet::shard {
namespace {

constexpr size_t kReservoirRecords = 1 << 16;  // quantiles are right to about 0.2 % of the samples
constexpr uint64_t kReservoirSeed = 1;
// Standardised values are clipped here: what lies further out is an accident of the data.
constexpr double kMaxDeviations = 100;

float logarithm(float value) { return std::copysign(std::log1p(std::abs(value)), value); }

float transformed(NumberKind kind, float value) {
  return kind == NumberKind::kLogarithm ? logarithm(value) : value;
}

// Equally many values between two edges, as far as equal values allow it.
std::vector<float> quantile_edges(std::vector<float> values, uint32_t bins) {
  std::sort(values.begin(), values.end());
  std::vector<float> edges;
  for (uint64_t bin = 1; bin < bins && !values.empty(); ++bin) {
    const float edge = values[values.size() * bin / bins];
    if (edge > values.front() && (edges.empty() || edge > edges.back())) edges.push_back(edge);
  }
  return edges;
}

}  // namespace

void NumberFeatures::Reservoir::add(std::span<const float> numbers) {
  columns_ = numbers.size();
  if (columns_ == 0) return;
  const uint64_t row = rows_++;
  uint64_t place = row;
  if (row >= kReservoirRecords) {
    place = Rng(kReservoirSeed, {kStreamReservoir, row}).below(static_cast<uint32_t>(row + 1));
    if (place >= kReservoirRecords) return;
  } else {
    values_.resize(values_.size() + columns_);
  }
  std::ranges::copy(numbers, values_.begin() + static_cast<ptrdiff_t>(place * columns_));
}

std::vector<float> NumberFeatures::Reservoir::column(size_t column) const {
  std::vector<float> values;
  for (size_t i = column; i < values_.size(); i += columns_)
    if (!std::isnan(values_[i])) values.push_back(values_[i]);
  return values;
}

NumberFeatures::NumberFeatures(std::vector<NumberKind> kinds, uint32_t bins) : bins_(bins) {
  for (const NumberKind kind : kinds) numbers_.push_back({.kind = kind});
}

void NumberFeatures::count(std::span<const float> numbers) { reservoir_.add(numbers); }

void NumberFeatures::finish() {
  for (size_t i = 0; i < numbers_.size(); ++i) fit(numbers_[i], reservoir_.column(i));
  reservoir_ = {};
}

void NumberFeatures::fit(Number& number, std::vector<float> values) const {
  if (number.kind == NumberKind::kBins) {
    number.edges = quantile_edges(std::move(values), bins_);
    return;
  }
  double sum = 0, squares = 0;
  for (float& value : values) sum += value = transformed(number.kind, value);
  const double mean = values.empty() ? 0 : sum / static_cast<double>(values.size());
  for (const float value : values) squares += (value - mean) * (value - mean);
  const auto deviation =
      static_cast<float>(std::sqrt(squares / static_cast<double>(std::max<size_t>(values.size(), 1))));
  number.mean = static_cast<float>(mean);
  // A column that is constant says nothing.
  number.reciprocal_deviation = std::isnormal(deviation) ? 1 / deviation : 0;
}

void NumberFeatures::add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const {
  tensors.push_back(tensor(prefix + "edges.counts", {counts_.size()}, counts_));
  tensors.push_back(tensor(prefix + "edges", {edges_.size()}, edges_));
  tensors.push_back(tensor(prefix + "scales", {scales_.size()}, scales_));
}

void NumberFeatures::restore(const SafetensorsFile& state, const std::string& prefix) {
  const std::string damaged = state.path().string() + ": damaged: ";
  const auto counts = list_in<uint32_t>(state, prefix + "edges.counts");
  auto edges = list_in<float>(state, prefix + "edges");
  auto scales = list_in<float>(state, prefix + "scales");
  size_t bin_columns = 0;
  for (Number& number : numbers_) {
    if (number.kind == NumberKind::kBins) {
      if (bin_columns == counts.size() || counts[bin_columns] >= bins_ || counts[bin_columns] > edges.size())
        throw FormatError(damaged + "its edges do not belong to its columns");
      number.edges.assign(edges.begin(), edges.begin() + counts[bin_columns]);
      edges = edges.subspan(counts[bin_columns++]);
      if (!std::ranges::all_of(number.edges, [](float edge) { return std::isfinite(edge); }) ||
          std::ranges::adjacent_find(number.edges, std::greater_equal{}) != number.edges.end())
        throw FormatError(damaged + "its edges do not ascend");
    } else {
      if (scales.size() < 2 || !std::isfinite(scales[0]) || !std::isfinite(scales[1]))
        throw FormatError(damaged + "its scales do not belong to its columns");
      number.mean = scales[0];
      number.reciprocal_deviation = scales[1];
      scales = scales.subspan(2);
    }
  }
  if (bin_columns != counts.size() || !edges.empty() || !scales.empty())
    throw FormatError(damaged + "it has more columns than its options");
}

uint32_t NumberFeatures::number_from(uint32_t first) {
  counts_.clear();
  edges_.clear();
  scales_.clear();
  for (Number& number : numbers_) {
    number.slot = first;
    if (number.kind == NumberKind::kBins) {
      first += 2 + static_cast<uint32_t>(number.edges.size());
      counts_.push_back(static_cast<uint32_t>(number.edges.size()));
      edges_.insert(edges_.end(), number.edges.begin(), number.edges.end());
    } else {
      first += 2;
      scales_.insert(scales_.end(), {number.mean, number.reciprocal_deviation});
    }
  }
  return first;
}

void NumberFeatures::append(std::span<const float> numbers, FeatureList& features) const {
  for (size_t i = 0; i < numbers_.size(); ++i) append(numbers_[i], numbers[i], features);
}

void NumberFeatures::append(const Number& number, float value, FeatureList& features) const {
  if (std::isnan(value)) return features.add(number.slot);
  if (number.kind == NumberKind::kBins) {
    const auto edge = std::upper_bound(number.edges.begin(), number.edges.end(), value);
    return features.add(number.slot + 1 + static_cast<uint32_t>(edge - number.edges.begin()));
  }
  const double deviations = (double{transformed(number.kind, value)} - double{number.mean}) *
                            double{number.reciprocal_deviation};
  const auto clipped = static_cast<float>(std::clamp(deviations, -kMaxDeviations, kMaxDeviations));
  if (clipped != 0) features.add(number.slot + 1, clipped);
}

}  // namespace modelet::shard
