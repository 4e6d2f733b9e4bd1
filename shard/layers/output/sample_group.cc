#include "shard/layers/output/sample_group.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "shard/kernels/elementwise.h"

namespace modelet::shard {
namespace {

// Active neurons that are processed together: their logits for 256 samples fit into L2. A multiple of the
// GEMM's tile.
constexpr size_t kPiece = OutputProducts::kLargestPiece;
// See SampleGroup::forward().
constexpr size_t kReferenceNeurons = 16;
bool too_large(float sum) { return !(sum <= 1e20f); }  // true for NaN too

// Reserves room for `count` elements and more, so that batches that grow a little do not take new memory each
// time: assign(), and resize() of an empty vector, take only what they need.
template <class T>
void make_room(std::vector<T>& values, size_t count) {
  if (values.capacity() < count) values.reserve(2 * count);
}

}  // namespace

// By counting sort.
void SortedTargets::sort_by(uint32_t Target::*key, const std::vector<Target>& from, size_t keys) {
  make_room(offsets, keys + 1);
  offsets.assign(keys + 1, 0);
  for (const Target& target : from) ++offsets[target.*key + 1];
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  targets.resize(from.size());
  for (const Target& target : from) targets[offsets[target.*key]++] = target;
  // Filling moved each offset to that of the next key.
  std::copy_backward(offsets.begin(), offsets.end() - 1, offsets.end());
  offsets[0] = 0;
}

SampleGroup::SampleGroup(std::span<Modelet* const> modelets, const OutputOptions& options,
                         const LabelSpread& spread, const LossFunction& loss, ThreadPool& pool)
    : modelets_(modelets),
      full_(options.sampling.mode == SamplingMode::kFull),
      loss_(loss),
      pool_(pool),
      products_(make_output_products(options.precision, pool)) {
  if (options.direct_path) direct_.emplace(modelets_, options, spread, pool);
}

void SampleGroup::begin(const Batch& whole, SampleRange samples) {
  samples_ = samples;
  columns_ = samples.columns();
  batch_ = &whole;
  if (samples.size() < whole.size()) {
    part_.assign(whole, samples);
    batch_ = &part_;
  }
  neurons_.clear();
  targets_.clear();
}

void SampleGroup::add(uint32_t modelet, const ActiveSet& set) {
  const size_t first = neurons_.size();
  for (const uint32_t row : set.rows) neurons_.push_back({modelet, row});
  for (const Target& target : set.targets)
    targets_.push_back({target.sample, static_cast<uint32_t>(first) + target.active});
}

void SampleGroup::gather(size_t width) {
  width_ = width;
  make_room(biases_, neurons_.size());
  biases_.assign(neurons_.size(), 0.0f);
  by_sample_.sort_by(&Target::sample, targets_, samples_.size());
  by_neuron_.sort_by(&Target::active, by_sample_.targets, neurons_.size());
  target_logits_.resize(targets_.size());
  pieces_.clear();
  for (const ActiveRange& range :
       products_->gather(modelets_, neurons_, full_, samples_.size(), width_, biases_))
    for (size_t i = 0; i < range.count; i += kPiece)
      pieces_.push_back({range.first + i, std::min(kPiece, range.count - i)});
  activations_.reserve(neurons_.size() * columns_);
  piece_statistics_.resize(std::max<size_t>(pieces_.size(), 1) * columns_);
  if (direct_) direct_->assign({batch_, neurons_, pieces_, by_neuron_.targets, by_neuron_.offsets});
}

// Logits become activations while they are in the cache, piece by piece. The maximum of all of them is not
// known then. Any reference near it serves as well, since it drops out of the softmax, and the first few
// neurons, which include labels of the samples, provide one.
void SampleGroup::forward(ConstMatrix hidden, ConstMatrix hidden_transposed, SampleRange range,
                          const Results& results) {
  const size_t begin = range.begin, columns = range.columns();
  products_->take_hidden(hidden, hidden_transposed, range);
  float* const reference = results.statistics.row(kReference) + begin;
  const ActiveRange some{0, pieces_.empty() ? 0 : std::min(kReferenceNeurons, pieces_[0].count)};
  if (some.count > 0 && loss_.normalised()) logits_of_piece(some, range);
  const float* const logits = some.count > 0 ? activations_.data() + begin : nullptr;
  loss_.maximum(logits, some.count, columns_, reference, columns);
  activate(range, results);
  if (raise_references(range, results)) {
    activate(range, results);
    // Against the maximum, exponentials are large only if logits are not numbers.
    float* const sum = results.statistics.row(kSum) + begin;
    std::replace_if(sum, sum + columns, too_large, std::numeric_limits<float>::quiet_NaN());
  }

  float* const target = results.statistics.row(kTarget);
  std::fill_n(target + begin, columns, 0.0f);
  for (size_t t = 0; t < target_logits_.size(); ++t) {
    const uint32_t sample = by_neuron_.targets[t].sample;
    if (sample >= begin && sample < range.end) target[sample] += target_logits_[t];
  }

  // Few pieces, since each streams all active rows through the cache: one with one thread, else several equal
  // ones, so that threads end together.
  const size_t pieces = pool_.threads() == 1 ? 1 : 2 * pool_.threads();
  const size_t samples_a_piece = std::max<size_t>(24, (range.size() + pieces - 1) / pieces);
  pool_.for_pieces(range.size(), samples_a_piece, [&](size_t first, size_t last) {
    products_->positive(activations_.data(), begin + first, begin + last,
                        results.positive.row(begin + first));
    negative_of_samples(begin + first, begin + last, results);
  });
}

// Activates all pieces, against the references.
void SampleGroup::activate(SampleRange range, const Results& results) {
  const size_t begin = range.begin, columns = range.columns();
  float* const piece_sums = piece_statistics_.data() + begin;
  const float* const reference = results.statistics.row(kReference) + begin;
  float* const sum = results.statistics.row(kSum) + begin;
  pool_.for_pieces(pieces_.size(), 1, [&](size_t i, size_t) {
    logits_of_piece(pieces_[i], range);
    float* const logits = activations_.data() + pieces_[i].first * columns_ + begin;
    for (size_t t = first_target(pieces_[i]); t < last_target(pieces_[i]); ++t) {
      const Target& label = by_neuron_.targets[t];
      if (label.sample >= begin && label.sample < range.end)
        target_logits_[t] = activations_.data()[label.active * columns_ + label.sample];
    }
    loss_.activate(logits, pieces_[i].count, columns_, reference, piece_sums + i * columns_, columns);
    const float* const activations = logits;  // now
    if (direct_) direct_->read_activations(i, range, activations);
    products_->keep_activations(pieces_[i].first, pieces_[i].count, range, activations);
  });
  std::fill_n(sum, columns, 0.0f);
  for (size_t i = 0; i < pieces_.size(); ++i) kernels::add(piece_sums + i * columns_, sum, columns);
  if (direct_) direct_->fill_statistics(range, results.statistics.row_range(kStatistics, kScaleStatistics));
}

// Where exponentials have become so large that they might overflow, the maximum becomes the reference: true
// if there are such samples. This is rare, so the logits are simply computed again.
bool SampleGroup::raise_references(SampleRange range, const Results& results) {
  const size_t begin = range.begin, columns = range.columns();
  const float* const sum = results.statistics.row(kSum) + begin;
  if (std::none_of(sum, sum + columns, too_large)) return false;

  float* const piece_maxima = piece_statistics_.data() + begin;
  pool_.for_pieces(pieces_.size(), 1, [&](size_t i, size_t) {
    logits_of_piece(pieces_[i], range);
    loss_.maximum(activations_.data() + pieces_[i].first * columns_ + begin, pieces_[i].count, columns_,
                  piece_maxima + i * columns_, columns);
  });
  float* const reference = results.statistics.row(kReference) + begin;
  for (size_t c = 0; c < columns; ++c) {
    if (!too_large(sum[c])) continue;
    for (size_t i = 0; i < pieces_.size(); ++i)
      reference[c] = std::max(reference[c], piece_maxima[i * columns_ + c]);
  }
  return true;
}

void SampleGroup::logits_of_piece(const ActiveRange& piece, SampleRange range) {
  float* const logits = activations_.data() + piece.first * columns_ + range.begin;
  products_->logits(piece.first, piece.count, range, biases_.data() + piece.first, logits);
  if (direct_) direct_->add_logits(piece, range, logits);
}

void SampleGroup::negative_of_samples(size_t begin, size_t end, const Results& results) {
  for (size_t s = begin; s < end; ++s) {
    float* out = results.negative.row(s);
    std::fill_n(out, width_, 0.0f);
    for (size_t t = by_sample_.offsets[s]; t < by_sample_.offsets[s + 1]; ++t)
      products_->add_row(by_sample_.targets[t].active, out);
    if (!loss_.normalised()) kernels::axpy(-1, out, results.positive.row(s), width_);
  }
}

// Gradients with respect to the logits are written beside the activations, in the cache: the activations stay
// unchanged for another call.
void SampleGroup::gradients(const ActiveRange& piece, const float* factor, const float* target_factor,
                            float* by_logit, float* by_weight) const {
  kernels::scale_columns(activations_.data() + piece.first * columns_, piece.count, columns_, factor,
                         by_logit, columns_);
  for (size_t t = first_target(piece); t < last_target(piece); ++t) {
    const Target& target = by_neuron_.targets[t];
    by_logit[(target.active - piece.first) * columns_ + target.sample] -= target_factor[target.sample];
  }
  products_->gradient_rows(piece.count, by_logit, by_weight);
}

}  // namespace modelet::shard
