#include "shard/modelet/low_rank_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/array/padding.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/gemm.h"

namespace modelet::shard {
namespace {

constexpr size_t kCachedRows = 96;  // rows whose products stay in the first cache
constexpr int kIterations = 2;      // of the subspace: the spectrum of activations falls fast
constexpr float kLeastNew = 1e-3f;  // of a direction's length that must be new, or it is rounding
constexpr size_t kProbes = 64;      // rows, and samples, that missed_share() looks at

// Makes the rows of directions [count, dim] orthonormal, one after the other (Gram-Schmidt, each twice, which
// is enough: Giraud et al., 2005).
void orthonormalise(std::vector<float>& directions, size_t dim) {
  for (size_t i = 0; i * dim < directions.size(); ++i) {
    float* const row = &directions[i * dim];
    const float length = std::sqrt(kernels::sum_squares(row, dim));
    for (int round = 0; round < 2; ++round)
      for (size_t j = 0; j < i; ++j) {
        const float* const other = &directions[j * dim];
        kernels::axpy(-kernels::dot(other, row, dim), other, row, dim);
      }
    const float left = std::sqrt(kernels::sum_squares(row, dim));
    kernels::scale(left > kLeastNew * length ? 1 / left : 0.0f, row, dim);
  }
}

// The columns that each row is multiplied with: the directions, the mean, and zeros up to a whole vector.
std::vector<float> as_columns(const LowRankBasis& basis, size_t rank, size_t dim, size_t columns) {
  std::vector<float> out(dim * columns, 0.0f);
  for (size_t c = 0; c < dim; ++c) {
    for (size_t j = 0; j < rank; ++j) out[c * columns + j] = basis.directions[j * dim + c];
    out[c * columns + rank] = basis.mean[c];
  }
  return out;
}

}  // namespace

LowRankBasis main_directions(ConstMatrix hidden, size_t rank) {
  const size_t samples = hidden.rows, dim = hidden.cols, columns = padded(samples);
  MODELET_CHECK(samples > 0 && dim % kVectorFloats == 0);
  LowRankBasis basis{.mean = std::vector<float>(dim, 0.0f), .directions = std::vector<float>(rank * dim)};
  for (size_t s = 0; s < samples; ++s)
    kernels::axpy(1 / static_cast<float>(samples), hidden.row(s), basis.mean.data(), dim);
  std::vector<float> centred(samples * dim), transposed(dim * columns, 0.0f), scores(rank * columns);
  for (size_t s = 0; s < samples; ++s)
    for (size_t c = 0; c < dim; ++c)
      transposed[c * columns + s] = centred[s * dim + c] = hidden.row(s)[c] - basis.mean[c];

  Rng rng(0, {kStreamLowRank});  // any start serves
  for (float& value : basis.directions) value = rng.normal();
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    kernels::gemm({.m = rank,
                   .n = columns,
                   .k = dim,
                   .a = basis.directions.data(),
                   .a_row = dim,
                   .a_col = 1,
                   .b = transposed.data(),
                   .b_row = columns,
                   .c = scores.data(),
                   .c_row = columns});
    kernels::gemm({.m = rank,
                   .n = dim,
                   .k = samples,
                   .a = scores.data(),
                   .a_row = columns,
                   .a_col = 1,
                   .b = centred.data(),
                   .b_row = dim,
                   .c = basis.directions.data(),
                   .c_row = dim});
    orthonormalise(basis.directions, dim);
  }
  return basis;
}

LowRankIndex::LowRankIndex(size_t rows, size_t dim, size_t rank)
    : rows_(rows), dim_(dim), rank_(std::min(rank, dim)), projections_(rows * rank_), centres_(rows) {
  MODELET_CHECK(dim % kVectorFloats == 0 && rank % kVectorFloats == 0 && rank > 0);
}

void LowRankIndex::build(const Parameters& parameters, LowRankBasis basis, ConstMatrix hidden,
                         ThreadPool& pool) {
  MODELET_CHECK(parameters.rows() == rows_ && parameters.cols() == dim_);
  MODELET_CHECK(basis.directions.size() == rank_ * dim_);
  take_basis(std::move(basis));
  const size_t columns = padded(rank_ + 1);
  const std::vector<float> floats = as_columns(basis_, rank_, dim_, columns);
  AlignedVector<Bf16> pairs(dim_ * columns);
  kernels::pack_pairs({floats.data(), dim_, columns, columns}, pairs.data(), columns);
  pool.for_pieces(rows_, kCachedRows, [&](size_t begin, size_t end) {
    AlignedVector<float> products((end - begin) * columns);
    parameters.copy_biases(begin, end - begin, centres_.data() + begin);
    const auto multiply = [&](const auto* weights, size_t stride) {
      using T = std::remove_cv_t<std::remove_pointer_t<decltype(weights)>>;
      constexpr size_t kWidth = std::is_same_v<T, Bf16> ? 2 : 1;  // elements of a position along k
      kernels::GemmOf<T> gemm{.m = end - begin,
                              .n = columns,
                              .k = dim_ / kWidth,
                              .a = weights + begin * stride,
                              .a_row = stride / kWidth,
                              .a_col = 1,
                              .b_row = columns,
                              .c = products.data(),
                              .c_row = columns};
      if constexpr (kWidth == 2) {
        gemm.b = pairs.data();
      } else {
        gemm.b = floats.data();
      }
      kernels::gemm(gemm);
    };
    parameters.with_weights(multiply);
    for (size_t r = begin; r < end; ++r) {
      const float* const product = &products[(r - begin) * columns];
      kernels::narrow(product, &projections_[r * rank_], rank_);
      centres_[r] += product[rank_];
    }
  });
  ready_ = true;
  missed_ = missed_share(parameters, hidden);
}

void LowRankIndex::take_basis(LowRankBasis basis) {
  basis_ = std::move(basis);
  shift_.resize(rank_);
  for (size_t j = 0; j < rank_; ++j)
    shift_[j] = -kernels::dot(&basis_.directions[j * dim_], basis_.mean.data(), dim_);
}

void LowRankIndex::search(ConstMatrix queries, std::span<const uint32_t> without, size_t runs,
                          ThreadPool& pool, LowRankSearch& search) const {
  const size_t columns = queries.cols;
  MODELET_CHECK(ready_ && queries.rows == dim_ && columns % kVectorFloats == 0);
  search.columns = columns;
  search.best.assign(runs * columns, -std::numeric_limits<float>::infinity());
  search.rows.assign(runs * columns, LowRankSearch::kNone);

  // V (h - m) for all queries at once.
  search.projected.resize(rank_ * columns);
  kernels::gemm({.m = rank_,
                 .n = columns,
                 .k = dim_,
                 .a = basis_.directions.data(),
                 .a_row = dim_,
                 .a_col = 1,
                 .b = queries.data,
                 .b_row = queries.stride,
                 .c = search.projected.data(),
                 .c_row = columns,
                 .row_start = shift_.data()});
  search.pairs.resize(rank_ * columns);
  kernels::pack_pairs({search.projected.data(), rank_, columns, columns}, search.pairs.data(), columns);

  search.starts.assign(centres_.begin(), centres_.end());
  for (const uint32_t row : without) search.starts[row] = -std::numeric_limits<float>::infinity();

  search.logits_pieces.resize(std::max<size_t>(search.logits_pieces.size(), pool.threads()));
  for (AlignedVector<float>& logits : search.logits_pieces)
    if (logits.size() < kCachedRows * columns) logits.resize(kCachedRows * columns);
  pool.for_pieces(runs, 1, [&](size_t run, size_t) {
    float* const logits = search.logits_pieces[pool.thread_index()].data();
    const size_t end = rows_ * (run + 1) / runs;
    for (size_t first = rows_ * run / runs; first < end; first += kCachedRows) {
      const size_t count = std::min(kCachedRows, end - first);
      kernels::gemm({.m = count,
                     .n = columns,
                     .k = rank_ / 2,
                     .a = &projections_[first * rank_],
                     .a_row = rank_ / 2,
                     .a_col = 1,
                     .b = search.pairs.data(),
                     .b_row = columns,
                     .c = logits,
                     .c_row = columns,
                     .row_start = &search.starts[first]});
      kernels::column_best(logits, count, columns, static_cast<uint32_t>(first), &search.best[run * columns],
                           &search.rows[run * columns], columns);
    }
  });
}

float LowRankIndex::drift(const Parameters& parameters, ConstMatrix hidden) const {
  return missed_share(parameters, hidden) - missed_;
}

float LowRankIndex::missed_share(const Parameters& parameters, ConstMatrix hidden) const {
  const size_t rows = std::min(kProbes, rows_), samples = std::min(kProbes, hidden.rows);
  std::vector<float> centred(dim_), scores(samples * rank_), projection(rank_);
  for (size_t s = 0; s < samples; ++s) {
    const float* const activations = hidden.row(s * hidden.rows / samples);
    for (size_t c = 0; c < dim_; ++c) centred[c] = activations[c] - basis_.mean[c];
    for (size_t j = 0; j < rank_; ++j)
      scores[s * rank_ + j] = kernels::dot(&basis_.directions[j * dim_], centred.data(), dim_);
  }
  double missed = 0, all = 0;
  for (size_t i = 0; i < rows; ++i) {
    const size_t row = i * rows_ / rows;
    std::transform(&projections_[row * rank_], &projections_[row * rank_] + rank_, projection.begin(),
                   to_float);
    for (size_t s = 0; s < samples; ++s) {
      const float distance = parameters.logit(row, hidden.row(s * hidden.rows / samples)) - centres_[row];
      const float miss = distance - kernels::dot(projection.data(), &scores[s * rank_], rank_);
      missed += double{miss} * miss;
      all += double{distance} * distance;
    }
  }
  return all > 0 ? static_cast<float>(missed / all) : 0;
}

void LowRankIndex::restore(LowRankBasis basis, std::span<const Bf16> projections,
                           std::span<const float> centres, float missed) {
  if (basis.mean.size() != dim_ || basis.directions.size() != rank_ * dim_ ||
      projections.size() != projections_.size() || centres.size() != centres_.size())
    throw FormatError(
        "the checkpoint's low-rank projections have another shape; it was damaged or written with "
        "other sampling settings: use its own experiment file");
  take_basis(std::move(basis));
  std::copy(projections.begin(), projections.end(), projections_.begin());
  std::copy(centres.begin(), centres.end(), centres_.begin());
  missed_ = missed;
  ready_ = true;
}

size_t LowRankIndex::memory_bytes() const {
  return projections_.capacity() * sizeof(Bf16) +
         (centres_.capacity() + basis_.mean.capacity() + basis_.directions.capacity()) * sizeof(float);
}

}  // namespace modelet::shard
