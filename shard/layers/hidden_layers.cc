#include "shard/layers/hidden_layers.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/row_dots.h"
#include "shard/layers/activation.h"

namespace modelet::shard {
namespace {

constexpr size_t kWidthPiece = 16;   // columns of a parallel piece when transposing
constexpr size_t kSamplePiece = 16;  // samples of a parallel piece
constexpr size_t kNeuronPiece = 32;  // neurons of a parallel piece in dense layers
constexpr size_t kPackedPiece = 64;  // rows of a parallel piece of an operand in pairs; even

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

HiddenLayer::HiddenLayer(std::vector<Modelet*> modelets, ThreadPool& pool, bool pairs)
    : modelets_(std::move(modelets)), pool_(pool), pairs_(pairs), left_(pool), scratch_(pool) {}

void HiddenLayer::prepare(ConstMatrix right) {
  if (!pairs_) return;
  left_.reserve(std::max(kNeuronPiece, kSamplePiece) * (right.rows + 1));
  Bf16* const out = right_.reserve((right.rows + 1) / 2 * 2 * right.cols).data();
  pool_.for_pieces(right.rows, kPackedPiece, [&](size_t begin, size_t end) {
    kernels::pack_pairs(right.row_range(begin, end - begin), out + begin * right.cols, right.cols);
  });
}

void HiddenLayer::multiply(const kernels::Gemm& gemm) {
  if (pairs_)
    kernels::gemm_of_pairs(gemm, right_.data(), left_.mine());
  else
    kernels::gemm(gemm);
}

void HiddenLayer::forward(ConstMatrix in, ConstMatrix in_transposed, Matrix out) {
  // Computed as out^T = W in^T, so that the GEMM walks weights and activations by contiguous rows, and
  // transposed back.
  prepare(in_transposed);
  for (const Modelet* modelet : modelets_) {
    const Parameters& p = modelet->parameters();
    const size_t columns = in_transposed.cols;
    scratch_.reserve(kNeuronPiece * columns);
    pool_.for_pieces(p.rows(), kNeuronPiece, [&](size_t begin, size_t end) {
      const size_t count = end - begin;
      std::array<float, kNeuronPiece> biases;
      p.copy_biases(begin, count, biases.data());
      float* z = scratch_.mine();
      multiply({.m = count,
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

void HiddenLayer::forward(const float* in, float* out) const {
  for (const Modelet* modelet : modelets_) {
    const Parameters& p = modelet->parameters();
    float* sums = out + modelet->spec().begin;
    kernels::row_dots(p.floats().data, p.floats().stride, p.rows(), in, p.cols(), sums);
    for (size_t r = 0; r < p.rows(); ++r) sums[r] += p.bias(r);
    activate(sums, p.rows());
  }
}

void HiddenLayer::backward(ConstMatrix pre_gradient, Matrix in_gradient) {
  if (modelets_.empty())
    for (size_t s = 0; s < in_gradient.rows; ++s) std::fill_n(in_gradient.row(s), in_gradient.cols, 0.0f);
  for (const Modelet* modelet : modelets_) {
    const ConstMatrix weights = modelet->parameters().floats();
    prepare(weights);
    pool_.for_pieces(in_gradient.rows, kSamplePiece, [&](size_t begin, size_t end) {
      multiply({.m = end - begin,
                .n = weights.cols,
                .k = weights.rows,
                .a = pre_gradient.row(begin) + modelet->spec().begin,
                .a_row = pre_gradient.stride,
                .a_col = 1,
                .b = weights.data,
                .b_row = weights.stride,
                .c = in_gradient.row(begin),
                .c_row = in_gradient.stride,
                .accumulate = modelet != modelets_.front()});
    });
  }
}

// Calls use(parameters, row, gradient, bias gradient) for every neuron held here.
template <class Use>
void HiddenLayer::for_each_gradient_row(ConstMatrix in, ConstMatrix pre_gradient, const Use& use) {
  prepare(in);
  for (Modelet* modelet : modelets_) {
    Parameters& p = modelet->parameters();
    scratch_.reserve(kNeuronPiece * p.cols());
    pool_.for_pieces(p.rows(), kNeuronPiece, [&](size_t begin, size_t end) {
      float* gradient = scratch_.mine();
      const float* g = pre_gradient.data + modelet->spec().begin + begin;
      multiply({.m = end - begin,
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
