// Output layer with an active set for each sample: the classic SLIDE (Chen et al., MLSys 2020), kept for
// comparison. Its products are scattered: a dot product for each (sample, neuron) forward, a sum over samples
// for each neuron backward.
//
// The set of a sample: its labels, its best candidates from the hash tables, and uniform draws
// (sampling.uniform a sample).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/parallel/thread_scratch.h"
#include "base/rng.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/row_sums.h"
#include "shard/layers/output/output_layer.h"

namespace modelet::shard {
namespace {

constexpr size_t kRetrievedTogether = 8;
constexpr size_t kUpdatedTogether = 64;

// The active sets of all samples in one modelet, as a sparse matrix [B, neurons].
struct SampleSets {
  std::vector<size_t> offsets;  // [B + 1]
  std::vector<uint32_t> rows;   // ascending within a sample
  std::vector<float> values;    // logits; activations from forward() on
  std::vector<uint8_t> is_label;
};

// An active neuron of a sample.
struct Entry {
  uint32_t row, sample;
  float gradient;
};

class PerSampleOutputLayer final : public OutputLayer {
 public:
  PerSampleOutputLayer(std::vector<Modelet*> modelets, const OutputOptions& options,
                       const LabelSpread& spread, ThreadPool& pool)
      : OutputLayer(std::move(modelets), options, spread, pool),
        sets_(modelets_.size()),
        gradient_rows_(pool) {
    for (const Modelet* modelet : modelets_) samplers_.emplace_back(*modelet, options);
  }

  void select(const Batch& batch, ConstMatrix hidden, uint64_t step) override;
  void gather() override {}
  void forward(ConstMatrix hidden, ConstMatrix hidden_transposed, SampleRange range) override;
  double gradient_square_sum(ConstMatrix hidden, const float* factor, const float* target_factor) override;
  void update(ConstMatrix hidden, const float* factor, const float* target_factor,
              const UpdateRule& rule) override;

  size_t active_neurons() const override {
    size_t sum = 0;
    for (const SampleSets& sets : sets_) sum += sets.rows.size();
    return sum;
  }

 private:
  void forward_sample(size_t s, ConstMatrix hidden);
  template <class Use>
  void for_each_gradient_row(ConstMatrix hidden, const float* factor, const float* target_factor,
                             const Use& use);
  void sort_entries();

  std::vector<ActiveSetSampler> samplers_;
  BatchLabels labels_;
  Queries queries_;
  std::vector<SampleSets> sets_;  // one for each modelet
  std::vector<uint32_t> best_;

  // Of select() and for_each_gradient_row(), kept for their memory.
  std::vector<uint32_t> labels_here_, certain_, rows_;  // of one sample
  std::vector<Entry> entries_;                          // of one modelet
  std::vector<uint32_t> entry_samples_;
  std::vector<float> entry_gradients_;
  std::vector<size_t> starts_;          // of each row in the entries, and their end
  std::vector<double> square_sums_;     // [rows]
  ThreadScratch<float> gradient_rows_;  // [d] per thread
};

void PerSampleOutputLayer::select(const Batch& batch, ConstMatrix hidden, uint64_t step) {
  resize(batch.size(), hidden.cols);
  labels_.assign(batch, spread_, modelets_);
  if (!modelets_.empty()) queries_.take(*modelets_[0]->retrieval(), hidden, pool_);
  for (size_t m = 0; m < modelets_.size(); ++m) {
    const ModeletSpec& spec = modelets_[m]->spec();
    const size_t top = samplers_[m].top();
    samplers_[m].retrieve(*modelets_[m], hidden, queries_, top, pool_, best_);

    SampleSets& sets = sets_[m];
    sets.offsets.assign(1, 0);
    sets.rows.clear();
    sets.is_label.clear();
    std::vector<uint32_t>&labels = labels_here_, &rows = rows_, &certain = certain_;
    auto label = labels_.of(m).begin();
    for (size_t s = 0; s < batch.size(); ++s) {
      labels.clear();
      for (; label != labels_.of(m).end() && label->sample == s; ++label) labels.push_back(label->row);
      std::sort(labels.begin(), labels.end());
      certain = labels;
      for (size_t i = 0; i < top; ++i)
        if (best_[s * top + i] != ActiveSetSampler::kNone) certain.push_back(best_[s * top + i]);
      std::sort(certain.begin(), certain.end());
      certain.erase(std::unique(certain.begin(), certain.end()), certain.end());
      const uint32_t draws = samplers_[m].draws(certain.size());
      rows = certain;
      Rng rng(options_.seed, {kStreamUniform, spec.layer, spec.begin, step, batch.first + s});
      for (uint32_t i = 0; i < draws; ++i) rows.push_back(rng.below(static_cast<uint32_t>(spec.neurons())));
      std::sort(rows.begin(), rows.end());
      rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
      for (const uint32_t row : rows) {
        sets.rows.push_back(row);
        sets.is_label.push_back(std::binary_search(labels.begin(), labels.end(), row) ? 1 : 0);
      }
      sets.offsets.push_back(sets.rows.size());
    }
    sets.values.resize(sets.rows.size());
  }
}

void PerSampleOutputLayer::forward(ConstMatrix hidden, ConstMatrix, SampleRange range) {
  pool_.for_pieces(range.size(), kRetrievedTogether, [&](size_t first, size_t last) {
    for (size_t s = range.begin + first; s < range.begin + last; ++s) forward_sample(s, hidden);
  });
}

void PerSampleOutputLayer::forward_sample(size_t s, ConstMatrix hidden) {
  float maximum = -std::numeric_limits<float>::infinity(), sum = 0, target = 0;
  float* positive = positive_.data() + s * width_;
  float* negative = negative_.data() + s * width_;
  std::fill_n(positive, width_, 0.0f);
  std::fill_n(negative, width_, 0.0f);
  for (size_t m = 0; m < sets_.size(); ++m) {
    SampleSets& sets = sets_[m];
    const Parameters& p = modelets_[m]->parameters();
    for (size_t i = sets.offsets[s]; i < sets.offsets[s + 1]; ++i) {
      sets.values[i] = p.logit(sets.rows[i], hidden.row(s));
      maximum = std::max(maximum, sets.values[i]);
      if (sets.is_label[i] == 0) continue;
      target += sets.values[i];
      p.add_row(sets.rows[i], 1, negative);
    }
  }
  if (!loss_->normalised()) maximum = 0;
  for (size_t m = 0; m < sets_.size(); ++m) {
    SampleSets& sets = sets_[m];
    const Parameters& p = modelets_[m]->parameters();
    for (size_t i = sets.offsets[s]; i < sets.offsets[s + 1]; ++i) {
      sum += loss_->activate_one(sets.values[i], maximum);
      p.add_row(sets.rows[i], sets.values[i], positive);
    }
  }
  if (!loss_->normalised()) kernels::axpy(-1, negative, positive, width_);
  statistics_[kReference * columns_ + s] = maximum;
  statistics_[kSum * columns_ + s] = sum;
  statistics_[kTarget * columns_ + s] = target;
}

// Calls use(modelet, row, gradient, bias gradient) for every neuron that is active for some sample.
template <class Use>
void PerSampleOutputLayer::for_each_gradient_row(ConstMatrix hidden, const float* factor,
                                                 const float* target_factor, const Use& use) {
  for (size_t m = 0; m < sets_.size(); ++m) {
    const SampleSets& sets = sets_[m];
    entries_.clear();
    for (size_t s = 0; s < samples_; ++s)
      for (size_t i = sets.offsets[s]; i < sets.offsets[s + 1]; ++i) {
        const float gradient = sets.values[i] * factor[s] - (sets.is_label[i] != 0 ? target_factor[s] : 0);
        entries_.push_back({sets.rows[i], static_cast<uint32_t>(s), gradient});
      }
    sort_entries();
    gradient_rows_.reserve(width_);
    pool_.for_pieces(starts_.size() - 1, kUpdatedTogether, [&](size_t begin, size_t end) {
      float* const gradient = gradient_rows_.mine();
      for (size_t n = begin; n < end; ++n) {
        const size_t first = starts_[n], count = starts_[n + 1] - first;
        kernels::weighted_row_sum(entry_samples_.data() + first, entry_gradients_.data() + first, count,
                                  hidden.data, hidden.stride, nullptr, gradient, width_);
        const float bias_gradient =
            std::accumulate(entry_gradients_.begin() + static_cast<std::ptrdiff_t>(first),
                            entry_gradients_.begin() + static_cast<std::ptrdiff_t>(first + count), 0.0f);
        use(*modelets_[m], entries_[first].row, gradient, bias_gradient);
      }
    });
  }
}

// Sorts the entries by row, those of a row by sample, and finds where each row begins.
void PerSampleOutputLayer::sort_entries() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.row, a.sample) < std::tie(b.row, b.sample);
  });
  entry_samples_.clear();
  entry_gradients_.clear();
  starts_.clear();
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (i == 0 || entries_[i].row != entries_[i - 1].row) starts_.push_back(i);
    entry_samples_.push_back(entries_[i].sample);
    entry_gradients_.push_back(entries_[i].gradient);
  }
  starts_.push_back(entries_.size());
}

double PerSampleOutputLayer::gradient_square_sum(ConstMatrix hidden, const float* factor,
                                                 const float* target_factor) {
  size_t rows = 0;
  for (const Modelet* modelet : modelets_) rows = std::max<size_t>(rows, modelet->spec().neurons());
  square_sums_.assign(rows, 0.0);  // by row, added in order: the same whatever the threads
  for_each_gradient_row(hidden, factor, target_factor,
                        [&](const Modelet&, uint32_t row, const float* gradient, float bias_gradient) {
                          square_sums_[row] += double{kernels::sum_squares(gradient, width_)} +
                                               double{bias_gradient} * bias_gradient;
                        });
  return std::accumulate(square_sums_.begin(), square_sums_.end(), 0.0);
}

void PerSampleOutputLayer::update(ConstMatrix hidden, const float* factor, const float* target_factor,
                                  const UpdateRule& rule) {
  for_each_gradient_row(hidden, factor, target_factor,
                        [&](Modelet& modelet, uint32_t row, float* gradient, float bias_gradient) {
                          modelet.parameters().update(row, gradient, bias_gradient, rule);
                          modelet.retrieval()->changed[row] = 1;
                        });
}

}  // namespace

std::unique_ptr<OutputLayer> make_per_sample_output_layer(std::vector<Modelet*> modelets,
                                                          const OutputOptions& options,
                                                          const LabelSpread& spread, ThreadPool& pool) {
  return std::make_unique<PerSampleOutputLayer>(std::move(modelets), options, spread, pool);
}

}  // namespace modelet::shard
