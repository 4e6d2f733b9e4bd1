#include "shard/inference/nearest_samples.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text/without_quotes.h"

namespace modelet::shard {
namespace {

double squared_length(std::span<const float> values) {
  return std::transform_reduce(values.begin(), values.end(), 0.0, std::plus{}, [](double value) { return value * value; });
}

// Of two samples, whose features ascend.
double product_of(const Sample& one, const Sample& two) {
  double sum = 0;
  for (size_t i = 0, j = 0; i < one.features.size() && j < two.features.size();) {
    if (one.features[i] == two.features[j]) sum += double{one.values[i]} * two.values[j];
    const bool advance_one = one.features[i] <= two.features[j], advance_two = two.features[j] <= one.features[i];
    i += advance_one ? 1 : 0;
    j += advance_two ? 1 : 0;
  }
  return sum;
}

}  // namespace

std::optional<Dataset> training_data_of(const Model& model, const PrepareProgress& progress) {
  const Experiment::Data& of_run = model.experiment().data;
  std::error_code failure;
  if (!std::filesystem::is_regular_file(of_run.train, failure)) return std::nullopt;
  try {
    Dataset data = load_training_data(of_run.train, of_run.normalize, encoding_of(model.experiment()), {}, progress);
    if (data.fingerprint() == model.shape().fingerprint) return data;
  } catch (const MisfitError& error) {
    throw UsageError(without_quotes(error));
  } catch (const FormatError& error) {
    throw FormatError(without_quotes(error));
  }
  return std::nullopt;
}

NearestSamples::NearestSamples(Dataset data) : data_(std::move(data)), offsets_(data_.labels() + 1) {
  for (size_t row = 0; row < data_.rows(); ++row)
    for (const uint32_t label : data_.sample(row).labels) ++offsets_[label + 1];
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  rows_.resize(offsets_.back());
  std::vector<uint64_t> next(offsets_.begin(), offsets_.end() - 1);
  for (size_t row = 0; row < data_.rows(); ++row)
    for (const uint32_t label : data_.sample(row).labels) rows_[next[label]++] = static_cast<uint32_t>(row);
}

std::vector<NearestSamples::Found> NearestSamples::find(const Sample& sample, uint32_t label, size_t most) const {
  std::vector<Found> found;
  const double length = squared_length(sample.values);
  if (label + size_t{1} >= offsets_.size() || length == 0) return found;  // a label that came later has no samples here
  for (uint64_t i = offsets_[label]; i < offsets_[label + 1]; ++i) {
    const Sample other = data_.sample(rows_[i]);
    const double product = product_of(sample, other);
    if (product > 0)
      found.push_back({rows_[i], static_cast<float>(product / std::sqrt(length * squared_length(other.values)))});
  }
  const auto nearer = [](const Found& a, const Found& b) { return a.cosine != b.cosine ? a.cosine > b.cosine : a.row < b.row; };
  const auto end = found.begin() + static_cast<std::ptrdiff_t>(std::min(most, found.size()));
  std::partial_sort(found.begin(), end, found.end(), nearer);
  found.erase(end, found.end());
  return found;
}

}  // namespace modelet::shard
