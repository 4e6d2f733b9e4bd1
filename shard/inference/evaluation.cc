#include "shard/inference/evaluation.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "base/array/padding.h"
#include "base/error.h"
#include "shard/kernels/elementwise.h"

namespace modelet::shard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

void TopK::reset(size_t samples, size_t k) {
  samples_ = samples;
  k_ = k;
  scores_.assign(samples * k, -kInfinity);
  labels_.assign(samples * k, kNoLabel);
  thresholds_.assign(padded(samples), std::numeric_limits<float>::quiet_NaN());
  std::fill_n(thresholds_.begin(), samples, -kInfinity);
}

void TopK::insert_slowly(size_t sample, float score, uint32_t label) {
  float* scores = scores_.data() + sample * k_;
  uint32_t* labels = labels_.data() + sample * k_;
  const auto before = [&](size_t i) {
    return score > scores[i] || (score == scores[i] && label < labels[i]);
  };
  if (!before(k_ - 1)) return;
  size_t i = k_ - 1;
  for (; i > 0 && before(i - 1); --i) {
    scores[i] = scores[i - 1];
    labels[i] = labels[i - 1];
  }
  scores[i] = score;
  labels[i] = label;
  thresholds_[sample] = scores[k_ - 1];
}

void TopK::merge(const TopK& other) {
  for (size_t s = 0; s < samples_; ++s)
    for (size_t i = 0; i < other.k_; ++i)
      if (other.labels(s)[i] != kNoLabel) insert(s, other.scores(s)[i], other.labels(s)[i]);
}

void RowRanker::insert(const float* scores, uint32_t label) {
  const size_t found =
      kernels::positions_above(scores, best_.thresholds(), positions_.size(), positions_.data());
  for (size_t i = 0; i < found; ++i) best_.insert(positions_[i], scores[positions_[i]], label);
}

LabelRanker::LabelRanker(const Scoring& scoring, ThreadPool& pool, bool pairs)
    : scoring_(scoring),
      pool_(pool),
      pairs_(pairs && !scoring.modelets().empty() &&
             scoring.modelets()[0]->parameters().precision() == Precision::kBf16),
      scratch_(pool.threads()) {}

std::span<const uint32_t> LabelRanker::ranked(const Modelet& modelet, Ranking ranking,
                                              const LabelSet* among) {
  const bool all = ranking == Ranking::kPrediction || modelet.direct() == nullptr;
  const auto first = static_cast<uint32_t>(modelet.spec().begin);
  ranked_.clear();
  for (uint32_t row = 0; row < modelet.parameters().rows(); ++row)
    if ((all || modelet.direct()->pairs.positives(row) > 0) &&
        (among == nullptr || among->contains(scoring_.spread().label(first + row))))
      ranked_.push_back(row);
  return ranked_;
}

template <class Use>
void LabelRanker::for_each_neuron(ConstMatrix hidden_transposed, Ranking ranking, const LabelSet* among,
                                  size_t samples, const Batch* batch, const Use& use) {
  const size_t columns = padded(samples);
  MODELET_CHECK(hidden_transposed.cols == columns, "activations of other samples");
  queries_.assign(batch, hidden_transposed, scoring_.needs(), pairs_);
  for (size_t m = 0; m < scoring_.modelets().size(); ++m) {
    const Modelet& modelet = *scoring_.modelets()[m];
    const std::span<const uint32_t> all = ranked(modelet, ranking, among);
    pool_.for_pieces(all.size(), kScoredTogether, [&](size_t begin, size_t end) {
      const LabelRows labels{m, all.subspan(begin, end - begin)};
      const size_t count = labels.rows.size();
      PerThread& scratch = scratch_[pool_.thread_index()];
      scratch.logits.resize(kScoredTogether * columns);
      float* logits = scratch.logits.data();
      std::array<float, kScoredTogether> constants;
      scoring_.constants(labels, constants.data());
      for (size_t i = 0; i < count; ++i)
        std::fill_n(logits + i * columns, columns, constants[i] / scoring_.factor({m, labels.rows[i]}));
      scoring_.add_logits(queries_, labels, scratch.terms, logits);
      for (size_t i = 0; i < count; ++i) {
        float* const scores = logits + i * columns;
        if (const float factor = scoring_.factor({m, labels.rows[i]}); factor != 1)
          kernels::scale(factor, scores, columns);
        const auto neuron = static_cast<uint32_t>(modelet.spec().begin + labels.rows[i]);
        use(scratch, scoring_.spread().label(neuron), scores);
      }
    });
  }
}

void LabelRanker::rank_dense(ConstMatrix hidden_transposed, size_t samples, size_t k, TopK& best,
                             const Batch* batch, Ranking ranking, const LabelSet* among) {
  best.reset(samples, k);
  for (PerThread& scratch : scratch_) scratch.ranker.reset(samples, k);
  for_each_neuron(
      hidden_transposed, ranking, among, samples, batch,
      [](PerThread& scratch, uint32_t label, const float* row) { scratch.ranker.insert(row, label); });
  for (const PerThread& scratch : scratch_) best.merge(scratch.ranker.best());
}

void LabelRanker::score_dense(ConstMatrix hidden_transposed, size_t samples, float* scores,
                              const Batch* batch) {
  const size_t labels = scoring_.spread().labels();
  for_each_neuron(hidden_transposed, Ranking::kPrediction, nullptr, samples, batch,
                  [&](PerThread&, uint32_t label, const float* row) {
                    for (size_t s = 0; s < samples; ++s) scores[s * labels + label] += row[s];
                  });
}

void LabelRanker::add_scores(ConstMatrix hidden_transposed, size_t samples, Matrix scores, const Batch* batch,
                             const LabelSet* among) {
  for_each_neuron(hidden_transposed, Ranking::kPrediction, among, samples, batch,
                  [&](PerThread&, uint32_t label, const float* row) {
                    std::transform(row, row + scores.cols, scores.row(label), scores.row(label),
                                   std::plus<>());
                  });
}

}  // namespace modelet::shard
