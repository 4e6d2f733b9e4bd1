#include "shard/layers/output/direct_path.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/array/padding.h"
#include "base/error.h"
#include "shard/data/pairs/own_items.h"
#include "shard/kernels/elementwise.h"

namespace modelet::shard {
namespace {

constexpr size_t kLanes = PairLanes::kLanes;

// If the sums without the sample are shorter than this share of the whole, only rounding is left of them.
constexpr float kNothingLeft = 1e-3f;

}  // namespace

DirectPath::DirectPath(std::span<Modelet* const> modelets, const OutputOptions& options,
                       const LabelSpread& spread, ThreadPool& pool)
    : modelets_(modelets.begin(), modelets.end()),
      options_(options),
      spread_(spread),
      pool_(pool),
      lanes_(pool.threads()) {}

void DirectPath::assign(const Active& active) {
  active_ = active;
  columns_ = padded(active.batch->size());
  if (modelets_.empty()) return;
  size_t feature_count = 0;
  for (const Modelet* modelet : modelets_)
    feature_count = std::max(feature_count, modelet->direct()->pairs.feature_count());
  MODELET_CHECK(feature_count > 0, "build_pairs() first");
  features_.assign(*active.batch, feature_count, options_.input_dropout, options_.own_weight != 0);
  const size_t neurons = active.neurons.size();
  classes_.resize(neurons);
  for (size_t a = 0; a < neurons; ++a)
    classes_[a] = static_cast<uint8_t>(frequency_class(pairs_of(a).positives(active.neurons[a].row)));
  for (size_t c = 0; c < kFrequencyClasses; ++c) scales_[c] = modelets_[0]->direct()->scale(c);
  own_.resize(active.targets.size());
  cosines_.reserve(neurons * columns_);
  class_sums_.reserve(active.pieces.size() * kFrequencyClasses * columns_);
  for (PairLanes& lanes : lanes_) lanes.reserve(features_);
  pool_.for_pieces(active.pieces.size(), 1, [&](size_t i, size_t) { compute_cosines(active.pieces[i]); });
}

void DirectPath::compute_cosines(const ActiveRange& piece) {
  PairLanes& lanes = lanes_[pool_.thread_index()];
  for (size_t first = piece.first; first < piece.first + piece.count; first += kLanes) {
    compute_cosines(first, std::min(kLanes, piece.first + piece.count - first), lanes);
  }
}

void DirectPath::compute_cosines(size_t first, size_t count, PairLanes& lanes) {
  std::array<LabelPairs, kLanes> labels;
  for (size_t i = 0; i < count; ++i) labels[i] = pairs_of(first + i).sums(active_.neurons[first + i].row);
  lanes.multiply(features_, std::span(labels).first(count));
  for (size_t i = 0; i < count; ++i) {
    const size_t a = first + i;
    float* const cosines = cosines_.data() + a * columns_;
    std::fill_n(cosines, columns_, 0.0f);
    const float length = pairs_of(a).norm(active_.neurons[a].row);
    if (length > 0) lanes.add_sums(i, 1 / length, features_.inverse_lengths(), cosines);
    for (size_t t = active_.offsets[a]; t < active_.offsets[a + 1]; ++t) {
      own_[t] = own_cosine(active_.targets[t], i, lanes);
      cosines[active_.targets[t].sample] = 0;
    }
  }
  lanes.clear();
}

// |sums - x|^2 = |sums|^2 - 2 x sums + |x|^2, where only those features of x count that the label has.
DirectPath::OwnCosine DirectPath::own_cosine(const Target& target, size_t lane,
                                             const PairLanes& lanes) const {
  const Pairs& pairs = pairs_of(target.active);
  const size_t row = active_.neurons[target.active].row;
  const uint32_t others = pairs.positives(row) - 1;
  if (others == 0) return {};
  const float product = lanes.sum(lane, target.sample), length = pairs.norm(row);
  const float own = lanes.squares_among(lane, target.sample) * features_.value_scale();
  const float left = length * length - 2 * product + own;
  const OwnCosine none{0, frequency_class(others)};
  if (!(left > kNothingLeft * kNothingLeft * length * length)) return none;
  return {(product - own) / std::sqrt(left) * features_.inverse_lengths()[target.sample],
          none.frequency_class};
}

void DirectPath::add_own_items(size_t a, SampleRange range, float* logits) const {
  const ActiveNeuron neuron = active_.neurons[a];
  const auto own = active_.targets.subspan(active_.offsets[a], active_.offsets[a + 1] - active_.offsets[a]);
  const size_t place = modelets_[neuron.modelet]->spec().begin + neuron.row;
  const bool excluded = options_.own_weight < 0;
  for_each_owner(features_, spread_.label(static_cast<uint32_t>(place)), [&](uint32_t sample, float value) {
    if (sample < range.begin || sample >= range.end) return;
    if (excluded && std::ranges::binary_search(own, sample, {}, &Target::sample)) return;
    logits[sample - range.begin] += options_.own_weight * value;
  });
}

void DirectPath::add_logits(const ActiveRange& piece, SampleRange range, float* logits) const {
  for (size_t i = 0; i < piece.count; ++i) {
    const size_t a = piece.first + i;
    float* const row = logits + i * columns_;
    if (options_.own_weight != 0) add_own_items(a, range, row);
    kernels::axpy(scales_[classes_[a]], cosines_.data() + a * columns_ + range.begin, row, range.columns());
    for (size_t t = active_.offsets[a]; t < active_.offsets[a + 1]; ++t)
      if (const uint32_t sample = active_.targets[t].sample; sample >= range.begin && sample < range.end)
        row[sample - range.begin] += scales_[own_[t].frequency_class] * own_[t].cosine;
  }
}

void DirectPath::read_activations(size_t i, SampleRange range, const float* activations) {
  const ActiveRange& piece = active_.pieces[i];
  float* const sums = class_sums_.data() + i * kFrequencyClasses * columns_;
  for (size_t c = 0; c < kFrequencyClasses; ++c)
    std::fill_n(sums + c * columns_ + range.begin, range.columns(), 0.0f);
  for (size_t n = 0; n < piece.count; ++n) {
    const size_t a = piece.first + n;
    const float* const row = activations + n * columns_;
    kernels::add_products(row, cosines_.data() + a * columns_ + range.begin,
                          sums + classes_[a] * columns_ + range.begin, range.columns());
    for (size_t t = active_.offsets[a]; t < active_.offsets[a + 1]; ++t)
      if (const uint32_t sample = active_.targets[t].sample; sample >= range.begin && sample < range.end)
        sums[own_[t].frequency_class * columns_ + sample] += row[sample - range.begin] * own_[t].cosine;
  }
}

// Pieces are added in order, so the result does not depend on threads.
void DirectPath::fill_statistics(SampleRange range, Matrix statistics) const {
  for (size_t r = 0; r < kScaleStatistics; ++r)
    std::fill_n(statistics.row(r) + range.begin, range.columns(), 0.0f);
  for (size_t i = 0; i < active_.pieces.size(); ++i)
    for (size_t c = 0; c < kFrequencyClasses; ++c)
      kernels::add(class_sums_.data() + (i * kFrequencyClasses + c) * columns_ + range.begin,
                   statistics.row(c) + range.begin, range.columns());
  for (size_t t = 0; t < active_.targets.size(); ++t)
    if (const uint32_t sample = active_.targets[t].sample; sample >= range.begin && sample < range.end)
      statistics.row(kFrequencyClasses + own_[t].frequency_class)[sample] += own_[t].cosine;
}

DirectPath::ScaleGradient DirectPath::scale_gradient(const BatchLoss& loss,
                                                     std::span<const ConstMatrix> statistics, size_t first,
                                                     size_t samples) {
  ScaleGradient gradient{};
  for (size_t c = 0; c < kFrequencyClasses; ++c) {
    double sum = 0;
    for (size_t rank = 0; rank < statistics.size(); ++rank) {
      const float *const positive = statistics[rank].row(first + c), *const negative = statistics[rank].row(
                                                                         first + kFrequencyClasses + c);
      for (size_t s = 0; s < samples; ++s)
        sum += double{loss.factors[rank][s]} * positive[s] - double{loss.target_factor[s]} * negative[s];
    }
    gradient[c] = static_cast<float>(sum);
  }
  return gradient;
}

// All modelets get the same bits.
void DirectPath::update_scales(std::span<Modelet* const> modelets, ScaleGradient gradient,
                               const UpdateRule& rule) {
  UpdateRule faster = rule;
  faster.learning_rate *= kScaleRate;
  for (Modelet* modelet : modelets) {
    ScaleGradient scaled = gradient;  // update() may change it
    modelet->direct()->scales.update(0, scaled.data(), 0, faster);
  }
}

}  // namespace modelet::shard
