// SparseIndex: finds the best labels of one query without scoring all of them, for a network whose training
// is over.
//
// The score of a row w with bias b on a query q is w q + b. Queries are centred by their mean m, rows by
// their mean c, which keeps the order of scores: (w - c)(q - m) + (w m + b) + (a part that is the same for
// all rows). Three stages:
//   head    The rows that win most often are scored always. How often follows from the spread of the queries
//           (mean m, covariance S): the score is about normal with mean w m + b and variance
//           (w - c)' S (w - c), so rows are ordered by (threshold - mean) / deviation, where the threshold is
//           the median best score of known queries. This is where norms and biases of the rows count.
//   tables  Hash tables (SimHash) over the centred rows that follow, without the rows that never win. In a
//           bucket rows lie in the same order, and only the first few are looked at: a full bucket costs
//           little, and loses the rows that are least likely to win.
//   re-rank Rows that collide with the query most often are scored exactly.
// If there are terms beside the network (shard/layers/scoring/terms.cc), the caller computes beforehand what they add
// to the logit of every row. That counts in the head and in the re-rank. The order of the rows and the tables use only the
// activations, and the tuner makes up for this with a longer head. The sizes of the stages are a
// SparseSettings; sparse_tuner.h chooses them. (Asymmetric transforms that append the norm, Neyshabur and
// Srebro, ICML 2015, shrink all angles if few norms are large, as here:
// docs/decisions/0007-sparse-inference.md.)
//
// Owns copies of the rows that it can return, in the order above, so that the head is one stream through
// memory. Immutable after construction; any thread may rank, with a scratch of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/matrix.h"
#include "base/parallel/thread_pool.h"
#include "hashing/bucket_tables.h"
#include "hashing/hash_family.h"
#include "shard/inference/evaluation.h"
#include "shard/layers/scoring/scoring.h"

namespace modelet::shard {

struct SparseSettings {
  size_t rows = 0;        // rows that can be returned: the first in the order of their chances
  size_t head = 0;        // of these, scored always; <= rows
  uint32_t tables = 0;    // tables over the others; 0: none, and nothing below counts
  uint32_t bits = 1;      // log2 of the buckets of a table
  uint32_t bucket = 1;    // rows of a bucket that are looked at
  size_t candidates = 0;  // rows that are scored besides the head
};

inline constexpr uint32_t kMostSparseTables = 128;  // collisions are counted in a byte

// Known queries, which represent later ones.
struct QuerySample {
  ConstMatrix hidden;          // [queries, d] what the output layer reads
  std::vector<uint32_t> best;  // [queries] neuron with the highest score
  std::vector<float> scores;   // [queries] its score
};

// All rows of an output layer, ordered by their chance to be the best.
struct RowOrder {
  std::vector<uint32_t> neurons;  // best chances first
  std::vector<float> row_mean;    // [d] c
  std::vector<float> query_mean;  // [d] m
};
RowOrder order_rows(const Scoring& scoring, const QuerySample& queries, ThreadPool& pool);

// Copies of the first rows of an order, scaled as scores need them, with their labels and biases, and the
// factors by which scores multiply what other terms add.
struct PackedRows {
  PackedRows(const Scoring& scoring, const RowOrder& order, size_t count);
  size_t count() const { return labels.size(); }

  size_t width;
  AlignedVector<float> values;            // [count, width]
  std::vector<float> factors, biases;     // [count]
  std::vector<uint32_t> neurons, labels;  // [count]
};

// Hash codes [rows, tables] of rows less `mean`.
std::vector<uint32_t> hash_rows(const hashing::HashFamily& family, ConstMatrix rows,
                                std::span<const float> mean, ThreadPool& pool);

// The tables of the rows behind the head, and the counting of collisions. Rows are numbered from the head on.
class CollisionTables {
 public:
  struct Memory {
    std::vector<uint8_t> counts;    // [rows], all zero between queries
    std::vector<uint32_t> touched;  // rows with a count, in the order of their first collision
    std::vector<std::span<const uint32_t>> buckets;
    std::vector<uint32_t> reached;  // [tables + 1]: how many rows have a count of at least c
  };

  // codes [all rows, tables_of_codes]. Of each row the first `tables` codes are used; rows before `first_row`
  // are the head and are left out.
  CollisionTables(std::span<const uint32_t> codes, uint32_t tables_of_codes, uint32_t tables, uint32_t bits,
                  size_t first_row);

  // Counts collisions of a query with the first `bucket` rows of its bucket in each of the first `tables`.
  void count(std::span<const uint32_t> codes, uint32_t tables, uint32_t bucket, Memory& scratch) const;
  // Writes the rows that collided most often to `out`, at most `limit`; among equal counts those touched
  // first. Resets the counts to zero. Returns how many.
  static size_t choose(size_t limit, Memory& scratch, uint32_t* out);
  size_t memory_bytes() const { return tables_.memory_bytes(); }

 private:
  size_t rows_;
  hashing::BucketTables tables_;
};

class SparseIndex {
 public:
  struct Memory {
    CollisionTables::Memory collisions;
    hashing::HashMemory hash;
    std::vector<float> centred;
    std::vector<uint32_t> codes, candidates;
    AlignedVector<float> scores;
  };

  SparseIndex(const Scoring& scoring, const RowOrder& order, const SparseSettings& settings, uint64_t seed,
              ThreadPool& pool);

  // Inserts the labels that it finds for a query [d] into `best`, as labels of `sample`. `direct` [neurons of
  // the layer]: what other terms add to logits; null: nothing. Allocates nothing once the scratch is
  // warm.
  void rank(const float* query, const float* direct, Memory& scratch, size_t sample, TopK& best) const;

  const SparseSettings& settings() const { return settings_; }
  size_t memory_bytes() const;

 private:
  size_t find_candidates(const float* query, Memory& scratch) const;

  SparseSettings settings_;
  PackedRows rows_;
  std::vector<float> query_mean_;
  std::unique_ptr<hashing::HashFamily> family_;
  std::unique_ptr<CollisionTables> tables_;
};

// The family that makes the codes: the first tables of a bigger family are those of a smaller one.
std::unique_ptr<hashing::HashFamily> make_sparse_family(size_t width, uint32_t tables, uint32_t bits,
                                                        uint64_t seed);

}  // namespace modelet::shard
