#include "shard/layers/hidden_layers.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/gemm.h"
#include "shard/kernels/row_sums.h"
#include "shard/layers/activation.h"
#include "shard/modelet/update_rows.h"

namespace modelet::shard {
namespace {

constexpr size_t kWidthPiece = 16;   // columns of a parallel piece when transposing
constexpr size_t kSamplePiece = 16;  // samples of a parallel piece
constexpr size_t kNeuronPiece = 32;  // neurons of a parallel piece in dense layers

// Feature rows of a parallel piece: many, because each piece begins with fetching, but few enough that all
// threads get pieces when a batch has few features.
size_t feature_piece(size_t features) {
  constexpr size_t kPieces = 64, kLeast = 16, kMost = 256;
  return std::clamp(features / kPieces, kLeast, kMost);
}

}  // namespace

void transpose(ConstMatrix in, Matrix out, ThreadPool& pool) {
  MODELET_CHECK(out.rows == in.cols && out.cols >= in.rows);
  pool.for_pieces(in.cols, kWidthPiece, [&](size_t begin, size_t end) {
    for (size_t r0 = 0; r0 < in.rows; r0 += kWidthPiece)
      for (size_t c = begin; c < end; ++c)
        for (size_t r = r0; r < std::min(in.rows, r0 + kWidthPiece); ++r) out.row(c)[r] = in.row(r)[c];
    for (size_t c = begin; c < end; ++c) std::fill(out.row(c) + in.rows, out.row(c) + out.cols, 0.0f);
  });
}

// ---- InputLayer

InputLayer::InputLayer(std::vector<Parameters> runs, const FeatureRows& features, ThreadPool& pool)
    : runs_(std::move(runs)), features_(features), pool_(pool), scratch_(pool) {
  for (const Parameters& run : runs_) scratch_.reserve(Parameters::kRowsAtOnce * run.cols());
}

void InputLayer::forward(const Batch& batch, SampleRange range, Matrix out) {
  const bool all = features_.all();
  uint32_t* const entry_rows = all ? nullptr : entry_rows_.reserve(batch.features.size()).data();
  float* const entry_values = all ? nullptr : entry_values_.reserve(batch.features.size()).data();
  pool_.for_pieces(range.size(), kSamplePiece, [&](size_t begin, size_t end) {
    const uint32_t* rows = batch.features.data();
    const float* values = batch.values.data();
    std::array<uint64_t, kSamplePiece + 1> offsets{};  // of the piece's samples
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

// Calls use(parameters, count, known, row, gradients) for all rows that the batch touches, in pieces: row(i)
// is a row's number, the rest as in update_rows().
template <class Use>
void InputLayer::for_each_gradient_piece(const Batch& batch, ConstMatrix pre_gradient, const Use& use) {
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

double InputLayer::gradient_square_sum(const Batch& batch, ConstMatrix pre_gradient) {
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

void InputLayer::update(const Batch& batch, ConstMatrix pre_gradient, const UpdateRule& rule) {
  const auto update = [&](Parameters& p, size_t count, size_t known, const auto& row, const auto& gradients) {
    const auto row_of = [&](size_t i) { return ParameterRow{p, row(i)}; };
    update_rows(count, known, rule, row_of, gradients);
  };
  for_each_gradient_piece(batch, pre_gradient, update);
}

// ---- HiddenLayer

HiddenLayer::HiddenLayer(std::vector<Modelet*> modelets, ThreadPool& pool)
    : modelets_(std::move(modelets)), pool_(pool), scratch_(pool) {}

void HiddenLayer::forward(ConstMatrix in, ConstMatrix in_transposed, Matrix out) {
  // Computed as out^T = W in^T, so that the GEMM walks weights and activations by contiguous rows, and
  // transposed back.
  for (const Modelet* modelet : modelets_) {
    const Parameters& p = modelet->parameters();
    const size_t columns = in_transposed.cols;
    scratch_.reserve(kNeuronPiece * columns);
    pool_.for_pieces(p.rows(), kNeuronPiece, [&](size_t begin, size_t end) {
      const size_t count = end - begin;
      std::array<float, kNeuronPiece> biases;
      p.copy_biases(begin, count, biases.data());
      float* z = scratch_.mine();
      kernels::gemm({.m = count,
                     .n = columns,
                     .k = in.cols,
                     .a = p.floats().row(begin),
                     .a_row = p.floats().stride,
                     .a_col = 1,
                     .b = in_transposed.data,
                     .b_row = in_transposed.stride,
                     .c = z,
                     .c_row = columns,
                     .row_start = biases.data()});
      activate(z, count * columns);
      for (size_t s = 0; s < in.rows; ++s)
        for (size_t n = 0; n < count; ++n) out.row(s)[modelet->spec().begin + begin + n] = z[n * columns + s];
    });
  }
}

void HiddenLayer::backward(ConstMatrix pre_gradient, Matrix in_gradient) {
  pool_.for_pieces(in_gradient.rows, kSamplePiece, [&](size_t begin, size_t end) {
    bool accumulate = false;
    for (const Modelet* modelet : modelets_) {
      const Parameters& p = modelet->parameters();
      kernels::gemm({.m = end - begin,
                     .n = p.cols(),
                     .k = p.rows(),
                     .a = pre_gradient.row(begin) + modelet->spec().begin,
                     .a_row = pre_gradient.stride,
                     .a_col = 1,
                     .b = p.floats().data,
                     .b_row = p.floats().stride,
                     .c = in_gradient.row(begin),
                     .c_row = in_gradient.stride,
                     .accumulate = accumulate});
      accumulate = true;
    }
    if (!accumulate)  // no modelet of this layer is here
      for (size_t s = begin; s < end; ++s) std::fill_n(in_gradient.row(s), in_gradient.cols, 0.0f);
  });
}

// Calls use(parameters, row, gradient, bias gradient) for every neuron held here.
template <class Use>
void HiddenLayer::for_each_gradient_row(ConstMatrix in, ConstMatrix pre_gradient, const Use& use) {
  for (Modelet* modelet : modelets_) {
    Parameters& p = modelet->parameters();
    scratch_.reserve(kNeuronPiece * p.cols());
    pool_.for_pieces(p.rows(), kNeuronPiece, [&](size_t begin, size_t end) {
      float* gradient = scratch_.mine();
      const float* g = pre_gradient.data + modelet->spec().begin + begin;
      kernels::gemm({.m = end - begin,
                     .n = p.cols(),
                     .k = in.rows,
                     .a = g,
                     .a_row = 1,
                     .a_col = pre_gradient.stride,
                     .b = in.data,
                     .b_row = in.stride,
                     .c = gradient,
                     .c_row = p.cols()});
      for (size_t n = 0; n < end - begin; ++n) {
        float bias_gradient = 0;
        for (size_t s = 0; s < in.rows; ++s) bias_gradient += g[s * pre_gradient.stride + n];
        use(p, begin + n, gradient + n * p.cols(), bias_gradient);
      }
    });
  }
}

double HiddenLayer::gradient_square_sum(ConstMatrix in, ConstMatrix pre_gradient) {
  size_t rows = 0;
  for (const Modelet* modelet : modelets_) rows = std::max(rows, modelet->parameters().rows());
  sums_.assign(rows, 0.0);  // by row, added in order: the same whatever the threads
  for_each_gradient_row(
      in, pre_gradient, [&](const Parameters& p, size_t row, const float* gradient, float bias) {
        sums_[row] += double{kernels::sum_squares(gradient, p.cols())} + double{bias} * bias;
      });
  return std::accumulate(sums_.begin(), sums_.end(), 0.0);
}

void HiddenLayer::update(ConstMatrix in, ConstMatrix pre_gradient, const UpdateRule& rule) {
  for_each_gradient_row(in, pre_gradient,
                        [&](Parameters& p, size_t row, float* gradient, float bias_gradient) {
                          p.update(row, gradient, bias_gradient, rule);
                        });
}

}  // namespace modelet::shard
