// Active set: the output neurons of one modelet that take part in a step (DESIGN section 3.2). Shared by the
// whole batch: the labels of the batch in the modelet's range, per sample the best candidates of the hash
// tables after an exact re-rank, and uniform draws. A function of (experiment, modelet, batch, weights,
// step): not of placement or threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix.h"
#include "hashing/index.h"
#include "shard/data/batch.h"
#include "shard/label_spread.h"
#include "shard/modelet.h"
#include "shard/thread_pool.h"

namespace modelet::shard {

// A label of a sample that lies in the modelet: where the gradient's negative part goes.
struct Target {
  uint32_t sample = 0;
  uint32_t active = 0;  // index into ActiveSet::rows
};

struct ActiveSet {
  std::vector<uint32_t> rows;   // rows of the modelet, each once: labels, then retrieved, then drawn
  std::vector<Target> targets;  // by sample
};

// Hash codes [samples, tables] of a batch. The modelets of a layer share hash functions and the mean that
// queries are centred by (shard/modelet.h), so a sample is hashed once, with any of them.
class QueryCodes {
 public:
  void hash(const Retrieval& retrieval, ConstMatrix hidden, ThreadPool& pool);
  std::span<const uint32_t> of(size_t sample) const { return {codes_.data() + sample * tables_, tables_}; }

 private:
  size_t tables_ = 0;
  std::vector<uint32_t> codes_;
  std::vector<hashing::QueryScratch> scratch_;  // one a thread
};

// Builds the active sets of one modelet, step after step. Owns scratch; one thread at a time, except that
// retrieval runs on the pool.
class ActiveSetSampler {
 public:
  ActiveSetSampler(const Modelet& modelet, const Experiment& experiment, uint64_t labels);

  // hidden [batch, inputs]: what the output layer reads, `codes`: its hash codes in mode lsh. Result valid
  // until the next call.
  const ActiveSet& select(const Modelet& modelet, const Batch& batch, const LabelSpread& spread,
                          ConstMatrix hidden, const QueryCodes& codes, uint64_t step, ThreadPool& pool);

  // The best `top` rows for each sample: candidates of the tables, ordered by exact logit (ties: lower row).
  // best [samples * top], filled with kNone where there are fewer.
  void retrieve(const Modelet& modelet, ConstMatrix hidden, const QueryCodes& codes, size_t top,
                ThreadPool& pool, std::vector<uint32_t>& best);

  // What the last select() chose.
  const ActiveSet& set() const { return set_; }
  uint32_t top() const { return top_; }

  static constexpr uint32_t kNone = ~uint32_t{0};

 private:
  void add(uint32_t row);
  void add_targets(const Modelet& modelet, const Batch& batch, const LabelSpread& spread);
  void add_uniform(const Modelet& modelet, uint64_t step);

  SamplingMode mode_;
  uint64_t seed_;
  uint32_t draws_, top_, candidates_;
  ActiveSet set_;
  std::vector<uint32_t> position_;  // [neurons] index in set_.rows, or kNone
  std::vector<uint32_t> best_;
  struct Scratch {
    hashing::QueryScratch query;
    std::vector<std::pair<float, uint32_t>> scored;
  };
  std::vector<Scratch> scratch_;  // one a thread
};

}  // namespace modelet::shard
