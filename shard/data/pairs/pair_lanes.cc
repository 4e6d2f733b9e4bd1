#include "shard/data/pairs/pair_lanes.h"

#include <algorithm>

#include "shard/kernels/row_sums.h"

namespace modelet::shard {
namespace {

// To clear one value somewhere in memory costs as much as to clear so many side by side.
constexpr size_t kScattered = 8;

}  // namespace

void PairLanes::reserve(const BatchFeatures& batch) {
  const size_t values = (batch.count() + 1) * kLanes, sums = batch.batch().size() * kLanes;
  if (values_.size() < values) values_.resize(values);
  if (sums_.size() < sums) sums_.resize(sums);
}

// Values of features that the batch lacks are written to place 0, which nothing reads. That is cheaper than a
// test for each feature.
void PairLanes::multiply(const BatchFeatures& batch, std::span<const LabelPairs> labels) {
  reserve(batch);
  batch_ = &batch;
  labels_ = labels;
  pairs_ = 0;
  for (size_t lane = 0; lane < labels.size(); ++lane) {
    const LabelPairs& pairs = labels[lane];
    pairs_ += pairs.features.size();
    for (size_t i = 0; i < pairs.features.size(); ++i)
      values_[batch.place(pairs.features[i]) * kLanes + lane] = pairs.values[i];
  }
  const Batch& samples = batch.batch();
  kernels::weighted_row_sums(samples.offsets.data(), samples.size(), batch.entry_places(),
                             samples.values.data(), values_.data(), kLanes, sums_.data(), kLanes);
}

void PairLanes::add_sums(size_t label, float factor, const float* sample_factors, float* out) const {
  const size_t samples = batch_->batch().size();
  const float* const sums = sums_.data() + label;
  for (size_t s = 0; s < samples; ++s) out[s] += factor * sums[s * kLanes] * sample_factors[s];
}

float PairLanes::squares_among(size_t label, size_t sample) const {
  const Batch& samples = batch_->batch();
  float squares = 0;
  for (uint64_t i = samples.offsets[sample]; i < samples.offsets[sample + 1]; ++i)
    if (values_[batch_->entry_places()[i] * kLanes + label] != 0)
      squares += samples.values[i] * samples.values[i];
  return squares;
}

void PairLanes::clear() {
  const size_t all = (batch_->count() + 1) * kLanes;
  if (pairs_ * kScattered > all) {
    std::fill_n(values_.begin(), all, 0.0f);
    return;
  }
  for (size_t lane = 0; lane < labels_.size(); ++lane)
    for (const uint32_t feature : labels_[lane].features) values_[batch_->place(feature) * kLanes + lane] = 0;
}

}  // namespace modelet::shard
