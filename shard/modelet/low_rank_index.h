// LowRankIndex: approximate logits of all rows of a modelet at a small part of their cost, to find the rows
// with the largest ones.
//
// Activations of a trained network lie near a space of few dimensions. With their mean m and their
// `rank` main directions V [rank, dim], orthonormal,
//   logit = w h + b  ~  (w m + b) + (V w) (V (h - m)),
// and V w, the projection of a row, is kept for all rows: bf16, rank / dim of a row's length. The part w m +
// b is the same for all queries and is kept exactly; it decides most of a row's rank. (Shim et al.,
// "SVD-Softmax", NIPS 2017, preview logits with the singular vectors of the weights; here the directions are
// those of the queries, found by subspace iteration: Halko, Martinsson, Tropp, SIAM Review 2011, algorithm
// 4.4.)
//
// A search is a product over all rows, so its time grows with the layer, unlike that of hash tables. A step
// whose active neurons are a share of the layer grows in the same way; docs/studies/active-set.md has
// measurements of both.
//
// The projections are those of the weights at the last build(); drift() tells how far behind they are.
// search() is const: many threads may call it, but not during build(), clear() or restore().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/bf16.h"
#include "base/array/matrix.h"
#include "base/parallel/thread_pool.h"
#include "shard/modelet/parameters.h"

namespace modelet::shard {

// The mean of activations and the directions in which they differ most. A function of the activations alone,
// so equal on all nodes.
struct LowRankBasis {
  std::vector<float> mean;        // [dim]
  std::vector<float> directions;  // [rank, dim], orthonormal; zeros where the activations have fewer
  bool operator==(const LowRankBasis&) const = default;
};

// hidden [samples, dim], samples >= 1, dim a multiple of kVectorFloats.
LowRankBasis main_directions(ConstMatrix hidden, size_t rank);

// The results of the last search, and its scratch. One per thread that searches.
struct LowRankSearch {
  static constexpr uint32_t kNone = ~uint32_t{0};

  size_t columns = 0;            // of the queries, padded
  AlignedVector<uint32_t> rows;  // [runs, columns] the best row of a run for a query, or kNone

  AlignedVector<float> projected, starts, best;     // [rank, columns], [rows], [runs, columns]
  AlignedVector<Bf16> pairs;                        // [rank / 2, columns, 2]
  std::vector<AlignedVector<float>> logits_pieces;  // one per thread: [rows of a piece, columns]
};

class LowRankIndex {
 public:
  // `rank`: a multiple of kVectorFloats; at most `dim` directions are used. Queries find nothing until
  // build() or restore().
  LowRankIndex(size_t rows, size_t dim, size_t rank);

  bool ready() const { return ready_; }
  size_t rank() const { return rank_; }
  size_t rows() const { return rows_; }
  void clear() { ready_ = false; }

  // Computes the projections of all rows. `hidden`: activations, as for main_directions(). It also measures
  // what the new projections miss of them; drift() compares with that.
  void build(const Parameters& parameters, LowRankBasis basis, ConstMatrix hidden, ThreadPool& pool);

  // Divides the rows into `runs` equal runs and finds in each, for each query, the row with the largest
  // approximate logit (of equal ones the first), leaving out those in `without`. queries [dim, columns]: a
  // query is a column; columns are a multiple of kVectorFloats. Results do not depend on threads.
  void search(ConstMatrix queries, std::span<const uint32_t> without, size_t runs, ThreadPool& pool,
              LowRankSearch& search) const;

  // The share of the logits' squared distance from their centre that the projections miss, minus that share
  // when they were built: about 0 while they are fresh. Estimated from some of the rows and samples.
  float drift(const Parameters& parameters, ConstMatrix hidden) const;

  // The part that a checkpoint keeps. restore() throws FormatError if shapes do not fit, and then changes
  // nothing.
  const LowRankBasis& basis() const { return basis_; }
  std::span<const Bf16> projections() const { return projections_; }  // [rows, rank]
  std::span<const float> centres() const { return centres_; }         // [rows] w m + b
  float missed_when_built() const { return missed_; }
  void restore(LowRankBasis basis, std::span<const Bf16> projections, std::span<const float> centres,
               float missed);

  size_t memory_bytes() const;

 private:
  void take_basis(LowRankBasis basis);
  float missed_share(const Parameters& parameters, ConstMatrix hidden) const;

  size_t rows_, dim_, rank_;
  bool ready_ = false;
  LowRankBasis basis_;
  std::vector<float> shift_;  // [rank] -V m
  AlignedVector<Bf16> projections_;
  std::vector<float> centres_;
  float missed_ = 0;
};

}  // namespace modelet::shard
