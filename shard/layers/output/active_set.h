// Active set: the output neurons of one modelet that take part in a step. Shared by the whole batch: the
// labels of the batch in the modelet's range, per sample the best candidates of low-rank projections or hash
// tables after an exact re-rank, and uniform draws. A function of (experiment, modelet, batch, weights,
// step): not of placement or threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/array/matrix.h"
#include "base/parallel/thread_pool.h"
#include "hashing/index.h"
#include "shard/data/batch/batch.h"
#include "shard/data/store/label_spread.h"
#include "shard/layers/output/output_options.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

// A label of a sample whose neuron lies in the modelet. The negative part of the gradient belongs to it.
struct Target {
  uint32_t sample = 0;
  uint32_t active = 0;  // index into ActiveSet::rows
};

struct ActiveSet {
  std::vector<uint32_t> rows;   // rows of the modelet, each once: labels, then retrieved, then drawn
  std::vector<Target> targets;  // by sample
  size_t drawn = 0;             // how many of the rows, the last ones, are uniform draws
};

// The labels of a batch, grouped by the modelet that has their neurons. They are looked up once for all
// modelets of a layer.
class BatchLabels {
 public:
  struct Label {
    uint32_t sample, row;  // row: of the modelet
  };

  // `modelets`: of the output layer, in the order of their ranges.
  void assign(const Batch& batch, const LabelSpread& spread, std::span<Modelet* const> modelets);
  // By sample; valid until the next assign().
  std::span<const Label> of(size_t modelet) const { return of_modelet_[modelet]; }

 private:
  std::vector<std::vector<Label>> of_modelet_;
  std::vector<uint64_t> ends_;     // of the modelets' ranges
  std::vector<uint32_t> neurons_;  // of the batch's labels
};

// Which samples of a batch retrieve neurons: all of them, or one in `every`.
struct QueryTurn {
  size_t every = 1, first = 0;
  bool of(size_t sample) const { return sample % every == first; }
};

// The samples of a batch that retrieve neurons, in the form that retrieval needs. It is computed once and
// serves all modelets of a layer. For hash tables it is codes [samples, tables], because all modelets have
// the same hash functions and centre queries by the same mean (shard/modelet/modelet.h). For low-rank
// projections it is the activations as columns.
class Queries {
 public:
  // Takes the samples whose turn it is. `retrieval`: that of any modelet of the layer.
  void take(const Retrieval& retrieval, ConstMatrix hidden, ThreadPool& pool, QueryTurn turn = {});
  std::span<const uint32_t> codes(size_t sample) const { return {codes_.data() + sample * tables_, tables_}; }
  // [d, padded queries]; a sample whose turn it is has column sample / turn.every.
  ConstMatrix columns() const { return {columns_.data(), width_, count_, count_}; }

 private:
  void hash(const Retrieval& retrieval, ConstMatrix hidden, ThreadPool& pool, QueryTurn turn);
  void transpose(ConstMatrix hidden, QueryTurn turn);

  size_t width_ = 0, count_ = 0;  // of the columns
  AlignedVector<float> columns_;
  size_t tables_ = 0;
  std::vector<uint32_t> codes_;
  std::vector<hashing::QueryMemory> scratch_;  // one per thread
};

// Builds the active sets of one modelet, step after step. Owns scratch; one thread at a time, except that
// retrieval runs on the pool.
class ActiveSetSampler {
 public:
  ActiveSetSampler(const Modelet& modelet, const OutputOptions& options);

  // labels: those of the batch that belong to the modelet. first_sample: Batch::first. hidden [batch,
  // inputs]: the input of the output layer. `queries`: taken from `hidden`; used only in mode lsh. The result
  // is valid until the next call.
  const ActiveSet& select(const Modelet& modelet, std::span<const BatchLabels::Label> labels,
                          size_t first_sample, ConstMatrix hidden, const Queries& queries, uint64_t step,
                          ThreadPool& pool);

  // The best `top` rows for each sample among the modelet's common rows and, for the samples whose turn it
  // is, candidates of the projections or tables, ordered by exact logit (ties: lower row). Rows that are
  // active already are left out. best [samples * top], filled with kNone where there are fewer.
  void retrieve(const Modelet& modelet, ConstMatrix hidden, const Queries& queries, size_t top,
                ThreadPool& pool, std::vector<uint32_t>& best, QueryTurn turn = {});

  // The result of the last select().
  const ActiveSet& set() const { return set_; }
  uint32_t top() const { return top_; }
  // Number of uniform draws in addition to `others` rows.
  uint32_t draws(size_t others) const;
  QueryTurn turn(uint64_t step) const { return {query_every_, step % query_every_}; }

  static constexpr uint32_t kNone = ~uint32_t{0};

 private:
  static constexpr size_t kSamplePiece = 16;  // samples that a thread retrieves for together

  struct Memory {
    hashing::QueryMemory query;
    AlignedVector<float> common_logits;              // [samples of a piece, padded common]
    std::vector<std::pair<float, uint32_t>> scored;  // of the sample's best rows
    std::vector<uint32_t> candidates;                // to be ranked, for the samples of a piece one after the
                                                     // other
    std::array<size_t, kSamplePiece + 1> ends;       // [1 + i]: where those of sample i end
    std::vector<float> logits;                       // of one sample's candidates
  };
  class BestRows;

  bool is_active(uint32_t row) const { return (active_[row / 64] >> (row % 64) & 1) != 0; }
  void add(uint32_t row);
  void add_all();
  void clear();
  void add_targets(std::span<const BatchLabels::Label> labels);
  void add_retrieved();
  void add_uniform(const Modelet& modelet, size_t first_sample, uint64_t step);
  void gather_common(const Modelet& modelet);
  void rank_common(ConstMatrix hidden, size_t begin, size_t end, Memory& scratch) const;
  void reserve_scratch(const Modelet& modelet, size_t top, const ThreadPool& pool);
  void find_candidates(const Modelet& modelet, const Queries& queries, QueryTurn turn, size_t begin,
                       size_t end, Memory& scratch) const;

  SamplingMode mode_;
  uint64_t seed_;
  uint32_t draws_, top_, candidates_, query_every_;
  size_t share_ = 0;  // rows that sampling.sparsity asks for; 0: draws_ counts
  ActiveSet set_;
  std::vector<uint64_t> active_;    // a bit for each neuron; most draws are looked up only here
  std::vector<uint32_t> position_;  // [neurons] index in set_.rows, of labels; of all in mode full
  std::vector<uint32_t> best_;
  // The common rows of this modelet that are not active: ids, biases, weights as columns.
  std::vector<uint32_t> common_;
  std::vector<float> common_biases_, widened_;
  AlignedVector<float> common_columns_;  // [d, padded common]
  std::vector<uint8_t> is_common_;       // [neurons]
  LowRankSearch search_;
  std::vector<Memory> scratch_;  // one per thread
};

}  // namespace modelet::shard
