#include "shard/layers/input_layer.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <utility>

#include "base/array/scratch.h"
#include "base/parallel/thread_scratch.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/row_sums.h"
#include "shard/layers/activation.h"
#include "shard/modelet/update_rows.h"

namespace modelet::shard {
namespace {

constexpr size_t kInputPiece = 16;  // samples of a parallel piece

// Feature rows of a parallel piece: many, because each piece begins with fetching, but few enough that all
// threads get pieces when a batch has few features.
size_t feature_piece(size_t features) {
  constexpr size_t kPieces = 64, kLeast = 16, kMost = 256;
  return std::clamp(features / kPieces, kLeast, kMost);
}

class SparseInput : public InputLayer {
 public:
  SparseInput(std::vector<Parameters> runs, const FeatureRows& features, ThreadPool& pool);

  void forward(const Batch& batch, SampleRange range, Matrix out) override;
  void forward(const Sample& sample, SampleMemory& memory, float* out) const override;
  double gradient_square_sum(const Batch& batch, ConstMatrix pre_gradient) override;
  void update(const Batch& batch, ConstMatrix pre_gradient, const UpdateRule& rule) override;

 private:
  template <class Use>
  void for_each_gradient_piece(const Batch& batch, ConstMatrix pre_gradient, const Use& use);

  std::vector<Parameters> runs_;
  const FeatureRows& features_;
  ThreadPool& pool_;
  Scratch<uint32_t> entry_rows_;  // [entries of a batch] if not all features have rows, and their values
  Scratch<float> entry_values_;
  ThreadScratch<float> scratch_;       // [kRowsAtOnce, columns of a run] per thread
  std::vector<uint32_t> all_samples_;  // 0 .. batch-1 and as many ones: the bias is a feature of every sample
  std::vector<float> ones_;
  std::vector<double> sums_;  // of gradient_square_sum
};

SparseInput::SparseInput(std::vector<Parameters> runs, const FeatureRows& features, ThreadPool& pool)
    : runs_(std::move(runs)), features_(features), pool_(pool), scratch_(pool) {
  for (const Parameters& run : runs_) scratch_.reserve(Parameters::kRowsAtOnce * run.cols());
}

void SparseInput::forward(const Batch& batch, SampleRange range, Matrix out) {
  const bool all = features_.all();
  uint32_t* const entry_rows = all ? nullptr : entry_rows_.reserve(batch.features.size()).data();
  float* const entry_values = all ? nullptr : entry_values_.reserve(batch.features.size()).data();
  pool_.for_pieces(range.size(), kInputPiece, [&](size_t begin, size_t end) {
    const uint32_t* rows = batch.features.data();
    const float* values = batch.values.data();
    std::array<uint64_t, kInputPiece + 1> offsets{};  // of the piece's samples
    std::copy_n(&batch.offsets[range.begin + begin], end - begin + 1, offsets.data());
    if (!all) {
      uint64_t kept = offsets[0], next = kept;
      for (size_t s = 1; s <= end - begin; ++s) {
        for (; next < batch.offsets[range.begin + begin + s]; ++next) {
          const uint32_t row = features_.row(rows[next]);
          if (row == FeatureRows::kNone) continue;
          entry_rows[kept] = row;
          entry_values[kept++] = values[next];
        }
        offsets[s] = kept;
      }
      rows = entry_rows;
      values = entry_values;
    }
    for (const Parameters& p : runs_)
      for (size_t s = 0; s < end - begin; ++s) {
        const uint64_t first = offsets[s], past = offsets[s + 1];
        float* h = out.row(range.begin + begin + s) + p.first_column();
        p.with_weights([&](const auto* weights, size_t stride) {
          kernels::weighted_row_sum(rows + first, values + first, past - first, weights, stride,
                                    weights + (p.rows() - 1) * stride, h, p.cols(),
                                    offsets[end - begin] - past);
        });
        activate(h, p.cols());
      }
  });
}

void SparseInput::forward(const Sample& sample, SampleMemory& memory, float* out) const {
  std::span<const uint32_t> rows = sample.features;
  std::span<const float> values = sample.values;
  if (!features_.all()) {
    memory.rows.clear();
    memory.values.clear();
    for (size_t i = 0; i < sample.features.size(); ++i)
      if (const uint32_t row = features_.row(sample.features[i]); row != FeatureRows::kNone) {
        memory.rows.push_back(row);
        memory.values.push_back(sample.values[i]);
      }
    rows = memory.rows;
    values = memory.values;
  }
  for (const Parameters& p : runs_) {
    float* h = out + p.first_column();
    p.with_weights([&](const auto* weights, size_t stride) {
      kernels::weighted_row_sum(rows.data(), values.data(), rows.size(), weights, stride,
                                weights + (p.rows() - 1) * stride, h, p.cols());
    });
    activate(h, p.cols());
  }
}

// Calls use(parameters, count, known, row, gradients) for all rows that the batch touches, in pieces: row(i)
// is a row's number, the rest as in update_rows().
template <class Use>
void SparseInput::for_each_gradient_piece(const Batch& batch, ConstMatrix pre_gradient, const Use& use) {
  while (all_samples_.size() < batch.size()) {
    all_samples_.push_back(static_cast<uint32_t>(all_samples_.size()));
    ones_.push_back(1.0f);
  }
  const auto sums = [&](const Parameters& run, const uint64_t* offsets, const uint32_t* samples,
                        const float* weights, std::span<RowGradient> gradients) {
    float* rows = scratch_.mine();
    kernels::weighted_row_sums(offsets, gradients.size(), samples, weights,
                               pre_gradient.data + run.first_column(), pre_gradient.stride, rows, run.cols());
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = {rows + i * run.cols(), 0};
  };
  const size_t features = batch.unique_features.size();
  pool_.for_pieces(features, feature_piece(features), [&](size_t begin, size_t end) {
    for (Parameters& run : runs_)
      use(
          run, end - begin, features - begin,
          [&](size_t i) { return features_.row(batch.unique_features[begin + i]); },
          [&](size_t i, std::span<RowGradient> gradients) {
            sums(run, &batch.feature_offsets[begin + i], batch.feature_samples.data(),
                 batch.feature_values.data(), gradients);
          });
  });
  const uint64_t all[] = {0, batch.size()};
  for (Parameters& run : runs_)
    use(
        run, 1, 1, [&](size_t) { return run.rows() - 1; },
        [&](size_t, std::span<RowGradient> gradients) {
          sums(run, all, all_samples_.data(), ones_.data(), gradients);
        });
}

double SparseInput::gradient_square_sum(const Batch& batch, ConstMatrix pre_gradient) {
  size_t rows = 0;
  for (const Parameters& run : runs_) rows = std::max(rows, run.rows());
  sums_.assign(rows, 0.0);  // by row, added in order: the same whatever the threads
  const auto add = [&](const Parameters& p, size_t count, size_t, const auto& row, const auto& gradients) {
    std::array<RowGradient, Parameters::kRowsAtOnce> some;
    for (size_t first = 0; first < count; first += some.size()) {
      const auto now = std::span(some).first(std::min(count - first, some.size()));
      gradients(first, now);
      for (size_t i = 0; i < now.size(); ++i)
        sums_[row(first + i)] += kernels::sum_squares(now[i].weights, p.cols());
    }
  };
  for_each_gradient_piece(batch, pre_gradient, add);
  return std::accumulate(sums_.begin(), sums_.end(), 0.0);
}

void SparseInput::update(const Batch& batch, ConstMatrix pre_gradient, const UpdateRule& rule) {
  const auto update = [&](Parameters& p, size_t count, size_t known, const auto& row, const auto& gradients) {
    const auto row_of = [&](size_t i) { return ParameterRow{p, row(i)}; };
    update_rows(count, known, rule, row_of, gradients);
  };
  for_each_gradient_piece(batch, pre_gradient, update);
}

}  // namespace

std::unique_ptr<InputLayer> make_sparse_input(std::vector<Parameters> runs, const FeatureRows& features,
                                              ThreadPool& pool) {
  return std::make_unique<SparseInput>(std::move(runs), features, pool);
}

}  // namespace modelet::shard
