#include "shard/inference/evaluation.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/array/padding.h"
#include "base/error.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/gemm.h"
#include "shard/kernels/simd/instruction_set.h"

namespace modelet::shard {
namespace {

constexpr size_t kScoredTogether = 96;  // neurons scored together by one thread
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// logits [rows.size(), stride] += what the direct path adds.
void add_direct(const Direct& direct, const BatchFeatures& features, std::span<const uint32_t> rows,
                PairLanes& lanes, std::vector<float>& units, float* logits, size_t stride) {
  const Pairs& pairs = direct.pairs;
  const std::array<float, kFrequencyClasses> scales = direct.scored_scales();
  std::array<LabelPairs, PairLanes::kLanes> labels;
  for (size_t first = 0; first < rows.size(); first += labels.size()) {
    const size_t now = std::min(labels.size(), rows.size() - first);
    const std::span<const uint32_t> of_labels = rows.subspan(first, now);
    units.clear();
    for (const uint32_t row : of_labels) units.resize(units.size() + pairs.features(row).size());
    float* next = units.data();
    for (size_t i = 0; i < now; ++i) {
      labels[i] = {pairs.features(of_labels[i]), next};
      pairs.unit_values(of_labels[i], scales, next);
      next += labels[i].features.size();
    }
    lanes.multiply(features, std::span(labels).first(now));
    for (size_t i = 0; i < now; ++i)
      lanes.add_sums(i, 1, features.inverse_lengths(), logits + (first + i) * stride);
    lanes.clear();
    if (pairs.options().exclude_own) {
      for (size_t i = 0; i < now; ++i) labels[i] = pairs.weights(of_labels[i]);
      lanes.multiply(features, std::span(labels).first(now));
      for (size_t i = 0; i < now; ++i) lanes.add_sums(i, 1, nullptr, logits + (first + i) * stride);
      lanes.clear();
    }
  }
}

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

LabelRanker::LabelRanker(std::vector<Modelet*> output_modelets, const LabelSpread& spread, ThreadPool& pool)
    : modelets_(std::move(output_modelets)), spread_(spread), pool_(pool), scratch_(pool.threads()) {}

bool LabelRanker::multiplies_pairs() const {
  return !modelets_.empty() && modelets_[0]->parameters().precision() == Precision::kBf16 &&
         kernels::pairs_pay();
}

void LabelRanker::pack(ConstMatrix hidden_transposed) {
  const size_t columns = hidden_transposed.cols;
  Bf16* const pairs = hidden_pairs_.reserve(hidden_transposed.rows * columns).data();
  for (size_t d = 0; d < hidden_transposed.rows; d += 2)
    kernels::pack_pairs(hidden_transposed.row(d), hidden_transposed.row(d + 1), pairs + d * columns, columns);
}

std::span<const uint32_t> LabelRanker::ranked(const Modelet& modelet, Ranking ranking) {
  const bool all = ranking == Ranking::kPrediction || modelet.direct() == nullptr;
  ranked_.clear();
  for (uint32_t row = 0; row < modelet.parameters().rows(); ++row)
    if (all || modelet.direct()->pairs.positives(row) > 0) ranked_.push_back(row);
  return ranked_;
}

void LabelRanker::multiply(const Parameters& parameters, std::span<const uint32_t> rows,
                           ConstMatrix hidden_transposed, bool pairs, const float* biases,
                           PerThread& scratch) const {
  const size_t width = parameters.cols(), columns = hidden_transposed.cols;
  if (pairs) {
    parameters.with_weights([&](const auto* all, size_t stride) {
      if constexpr (std::is_same_v<decltype(all), const Bf16*>) {
        Bf16* const copies = scratch.bf16_rows.reserve(kScoredTogether * width).data();
        const auto [weights, apart] = gather_rows(all, stride, width, rows, copies);
        kernels::gemm({.m = rows.size(),
                       .n = columns,
                       .k = width / 2,
                       .a = weights,
                       .a_row = apart / 2,
                       .a_col = 1,
                       .b = hidden_pairs_.data(),
                       .b_row = columns,
                       .c = scratch.logits.data(),
                       .c_row = columns,
                       .row_start = biases});
      }
    });
    return;
  }
  const ConstMatrix weights =
      parameters.weights().block(rows, scratch.rows.reserve(kScoredTogether * width).data());
  kernels::gemm({.m = rows.size(),
                 .n = columns,
                 .k = width,
                 .a = weights.data,
                 .a_row = weights.stride,
                 .a_col = 1,
                 .b = hidden_transposed.data,
                 .b_row = hidden_transposed.stride,
                 .c = scratch.logits.data(),
                 .c_row = columns,
                 .row_start = biases});
}

template <class Use>
void LabelRanker::for_each_neuron(ConstMatrix hidden_transposed, Ranking ranking, size_t samples,
                                  const Batch* batch, const Use& use) {
  if (!modelets_.empty() && modelets_[0]->direct() != nullptr) {
    MODELET_CHECK(batch != nullptr, "the direct path reads the samples");
    features_.assign(*batch, modelets_[0]->direct()->pairs.feature_count());
  }
  const size_t columns = padded(samples);
  MODELET_CHECK(hidden_transposed.cols == columns, "activations of other samples");
  const bool pairs = ranking == Ranking::kProposals && multiplies_pairs();
  if (pairs) pack(hidden_transposed);
  for (const Modelet* modelet : modelets_) {
    const std::span<const uint32_t> all = ranked(*modelet, ranking);
    pool_.for_pieces(all.size(), kScoredTogether, [&](size_t begin, size_t end) {
      const std::span<const uint32_t> rows = all.subspan(begin, end - begin);
      PerThread& scratch = scratch_[pool_.thread_index()];
      scratch.logits.resize(kScoredTogether * columns);
      float* logits = scratch.logits.data();
      std::array<float, kScoredTogether> biases;
      for (size_t i = 0; i < rows.size(); ++i)
        biases[i] = modelet->score_bias(rows[i]) / modelet->score_factor(rows[i]);
      multiply(modelet->parameters(), rows, hidden_transposed, pairs, biases.data(), scratch);
      if (modelet->direct() != nullptr)
        add_direct(*modelet->direct(), features_, rows, scratch.lanes, scratch.units, logits, columns);
      for (size_t i = 0; i < rows.size(); ++i) {
        float* const scores = logits + i * columns;
        if (const float factor = modelet->score_factor(rows[i]); factor != 1)
          kernels::scale(factor, scores, columns);
        use(scratch, spread_.label(static_cast<uint32_t>(modelet->spec().begin + rows[i])), scores);
      }
    });
  }
}

void LabelRanker::rank_dense(ConstMatrix hidden_transposed, size_t samples, size_t k, TopK& best,
                             const Batch* batch, Ranking ranking) {
  best.reset(samples, k);
  const size_t columns = padded(samples);
  for (PerThread& scratch : scratch_) {
    scratch.best.reset(samples, k);
    scratch.positions.resize(columns);
  }
  const auto take = [&](PerThread& scratch, uint32_t label, const float* row) {
    const size_t found =
        kernels::positions_above(row, scratch.best.thresholds(), columns, scratch.positions.data());
    for (size_t i = 0; i < found; ++i)
      scratch.best.insert(scratch.positions[i], row[scratch.positions[i]], label);
  };
  for_each_neuron(hidden_transposed, ranking, samples, batch, take);
  for (const PerThread& scratch : scratch_) best.merge(scratch.best);
}

void LabelRanker::score_dense(ConstMatrix hidden_transposed, size_t samples, float* scores,
                              const Batch* batch) {
  const size_t labels = spread_.labels();
  for_each_neuron(hidden_transposed, Ranking::kPrediction, samples, batch,
                  [&](PerThread&, uint32_t label, const float* row) {
                    for (size_t s = 0; s < samples; ++s) scores[s * labels + label] = row[s];
                  });
}

}  // namespace modelet::shard
