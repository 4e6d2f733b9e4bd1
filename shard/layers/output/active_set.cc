#include "shard/layers/output/active_set.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/array/padding.h"
#include "base/rng.h"
#include "shard/kernels/gemm.h"

namespace modelet::shard {

ActiveSetSampler::ActiveSetSampler(const Modelet& modelet, const OutputOptions& options)
    : mode_(options.sampling.mode),
      seed_(options.seed),
      candidates_(options.sampling.candidates),
      query_every_(options.sampling.query_every),
      active_((modelet.spec().neurons() + 63) / 64),
      position_(modelet.spec().neurons()),
      is_common_(modelet.retrieval() != nullptr ? modelet.spec().neurons() : 0) {
  // The modelet's share of the layer's draws, by its range, so that shares add up whatever the partition.
  const ModeletSpec& spec = modelet.spec();
  const uint64_t uniform = options.sampling.uniform;
  draws_ =
      static_cast<uint32_t>(uniform * spec.end / options.neurons - uniform * spec.begin / options.neurons);
  if (options.sampling.sparsity > 0)
    share_ = static_cast<size_t>(
        std::max(1.0, std::round(double{options.sampling.sparsity} * static_cast<double>(spec.neurons()))));
  top_ = retrieves_neurons(mode_) ? (options.sampling.top + options.modelets - 1) / options.modelets : 0;
}

void BatchLabels::assign(const Batch& batch, const LabelSpread& spread, std::span<Modelet* const> modelets) {
  of_modelet_.resize(modelets.size());
  for (auto& labels : of_modelet_) labels.clear();
  ends_.clear();
  for (const Modelet* modelet : modelets) ends_.push_back(modelet->spec().end);
  // In a loop of their own, so that many of them are requested from memory at a time.
  neurons_.clear();
  for (const uint32_t label : batch.labels) neurons_.push_back(spread.neuron(label));
  for (size_t s = 0; s < batch.size(); ++s)
    for (uint64_t i = batch.label_offsets[s]; i < batch.label_offsets[s + 1]; ++i) {
      const uint32_t neuron = neurons_[i];
      const auto m = static_cast<size_t>(std::ranges::upper_bound(ends_, neuron) - ends_.begin());
      if (m == modelets.size() || neuron < modelets[m]->spec().begin) continue;
      of_modelet_[m].push_back(
          {static_cast<uint32_t>(s), static_cast<uint32_t>(neuron - modelets[m]->spec().begin)});
    }
}

void ActiveSetSampler::add(uint32_t row) {
  active_[row / 64] |= uint64_t{1} << (row % 64);
  set_.rows.push_back(row);
}

// Rows in storage order: the products read the weights in place.
void ActiveSetSampler::add_all() {
  if (set_.rows.size() == position_.size()) return;  // nothing has changed since the last step
  for (uint32_t row = 0; row < position_.size(); ++row) {
    position_[row] = row;
    add(row);
  }
}

void ActiveSetSampler::clear() {
  for (const uint32_t row : set_.rows) active_[row / 64] = 0;
  set_.rows.clear();
}

void ActiveSetSampler::add_targets(std::span<const BatchLabels::Label> labels) {
  for (const auto& [sample, row] : labels) {
    if (!is_active(row)) {
      position_[row] = static_cast<uint32_t>(set_.rows.size());
      add(row);
    }
    set_.targets.push_back({sample, position_[row]});
  }
}

uint32_t ActiveSetSampler::draws(size_t others) const {
  if (share_ == 0) return draws_;
  return static_cast<uint32_t>(share_ - std::min(share_, others));
}

// Takes the best row of every sample first, then the second best, so that a limit leaves out the weakest.
void ActiveSetSampler::add_retrieved() {
  const size_t samples = top_ == 0 ? 0 : best_.size() / top_, labels = set_.rows.size();
  const size_t limit = share_ == 0 ? position_.size() : labels + (share_ - std::min(share_, labels)) / 2;
  for (size_t rank = 0; rank < top_; ++rank)
    for (size_t s = 0; s < samples && set_.rows.size() < limit; ++s)
      if (const uint32_t row = best_[s * top_ + rank]; row != kNone && !is_active(row)) add(row);
}

void ActiveSetSampler::add_uniform(const Modelet& modelet, size_t first_sample, uint64_t step) {
  const ModeletSpec& spec = modelet.spec();
  const auto neurons = static_cast<uint32_t>(spec.neurons());
  uint32_t wanted =
      std::min<uint32_t>(draws(set_.rows.size()), neurons - static_cast<uint32_t>(set_.rows.size()));
  // Each replica draws for itself; the first one draws as a model without replicas.
  Rng rng = first_sample == 0 ? Rng(seed_, {kStreamUniform, spec.layer, spec.begin, step})
                              : Rng(seed_, {kStreamUniform, spec.layer, spec.begin, step, first_sample});
  // Drawing until enough new rows are found is fast while half of them are free; beyond that, walk through
  // the rows and choose (Knuth, TAOCP 2, algorithm S).
  auto free = static_cast<uint32_t>(neurons - set_.rows.size());
  if (wanted <= free / 2) {
    while (wanted > 0) {
      const uint32_t row = rng.below(neurons);
      if (is_active(row)) continue;
      add(row);
      --wanted;
    }
    return;
  }
  for (uint32_t row = 0; row < neurons && wanted > 0; ++row) {
    if (is_active(row)) continue;
    if (rng.below(free--) >= wanted) continue;
    add(row);
    --wanted;
  }
}

// Keeps the best rows of one sample while candidates come in, as ascending keys (-logit, row). One comparison
// turns away nearly all candidates.
class ActiveSetSampler::BestRows {
 public:
  BestRows(size_t top, std::vector<std::pair<float, uint32_t>>& kept) : top_(top), kept_(kept) {
    kept_.clear();
  }

  void add(float logit, uint32_t row) {
    const std::pair key(-logit, row);
    if (kept_.size() == top_) {
      if (top_ == 0 || !(key < kept_.back())) return;
      kept_.pop_back();
    }
    kept_.insert(std::upper_bound(kept_.begin(), kept_.end(), key), key);
  }
  void write(uint32_t* rows) const {
    for (const auto& [negative, row] : kept_) *rows++ = row;
  }

 private:
  size_t top_;
  std::vector<std::pair<float, uint32_t>>& kept_;
};

void Queries::take(const Retrieval& retrieval, ConstMatrix hidden, ThreadPool& pool, QueryTurn turn) {
  if (retrieval.low_rank) {
    transpose(hidden, turn);
  } else {
    hash(retrieval, hidden, pool, turn);
  }
}

void Queries::transpose(ConstMatrix hidden, QueryTurn turn) {
  width_ = hidden.cols;
  count_ = padded((hidden.rows + turn.every - 1) / turn.every);
  columns_.assign(width_ * count_, 0.0f);
  for (size_t s = turn.first; s < hidden.rows; s += turn.every)
    for (size_t c = 0; c < width_; ++c) columns_[c * count_ + s / turn.every] = hidden.row(s)[c];
}

void Queries::hash(const Retrieval& retrieval, ConstMatrix hidden, ThreadPool& pool, QueryTurn turn) {
  const hashing::LshIndex& index = *retrieval.tables;
  tables_ = index.options().hash.tables;
  codes_.resize(hidden.rows * tables_);
  while (scratch_.size() < pool.threads()) index.reserve(scratch_.emplace_back());
  constexpr size_t kPiece = 16;
  pool.for_pieces(hidden.rows, kPiece, [&](size_t begin, size_t end) {
    for (size_t s = begin; s < end; ++s) {
      if (!turn.of(s)) continue;
      const auto codes =
          index.hash_query({hidden.row(s), hidden.cols}, retrieval.query_mean, scratch_[pool.thread_index()]);
      std::copy(codes.begin(), codes.end(), codes_.begin() + static_cast<std::ptrdiff_t>(s * tables_));
    }
  });
}

// The common rows as the columns of a matrix, so that their logits for a sample are one row of a product.
void ActiveSetSampler::gather_common(const Modelet& modelet) {
  const Parameters& parameters = modelet.parameters();
  for (const uint32_t row : common_) is_common_[row] = 0;
  common_.clear();
  common_biases_.clear();
  for (const uint32_t row : modelet.retrieval()->common) {
    if (is_active(row)) continue;
    is_common_[row] = 1;
    common_.push_back(row);
    common_biases_.push_back(parameters.bias(row));
  }
  const size_t width = parameters.cols(), columns = padded(common_.size());
  common_columns_.resize(width * columns);
  widened_.resize(width);
  for (size_t i = 0; i < common_.size(); ++i) {
    const float* weights = parameters.weights().row(common_[i], widened_.data());
    for (size_t c = 0; c < width; ++c) common_columns_[c * columns + i] = weights[c];
  }
}

void ActiveSetSampler::retrieve(const Modelet& modelet, ConstMatrix hidden, const Queries& queries,
                                size_t top, ThreadPool& pool, std::vector<uint32_t>& best, QueryTurn turn) {
  const size_t samples = hidden.rows;
  best.assign(samples * top, kNone);
  gather_common(modelet);
  reserve_scratch(modelet, top, pool);
  const std::optional<LowRankIndex>& low_rank = modelet.retrieval()->low_rank;
  search_.columns = 0;
  if (low_rank && low_rank->ready() && turn.first < samples)
    low_rank->search(queries.columns(), set_.rows, std::min<size_t>(candidates_, modelet.spec().neurons()),
                     pool, search_);
  pool.for_pieces(samples, kSamplePiece, [&](size_t begin, size_t end) {
    Memory& scratch = scratch_[pool.thread_index()];
    rank_common(hidden, begin, end, scratch);
    find_candidates(modelet, queries, turn, begin, end, scratch);
    for (size_t s = begin; s < end; ++s) {
      BestRows rows(top, scratch.scored);
      const float* logits = scratch.common_logits.data() + (s - begin) * padded(common_.size());
      for (size_t i = 0; i < common_.size(); ++i) rows.add(logits[i] + common_biases_[i], common_[i]);
      const size_t first = scratch.ends[s - begin], count = scratch.ends[s - begin + 1] - first;
      const std::span candidates = std::span(scratch.candidates).subspan(first, count);
      modelet.parameters().logits(candidates, hidden.row(s), scratch.logits.data());
      for (size_t i = 0; i < count; ++i) rows.add(scratch.logits[i], candidates[i]);
      rows.write(&best[s * top]);
    }
  });
}

// Computes the logits, without biases, of the common rows for samples [begin, end).
void ActiveSetSampler::rank_common(ConstMatrix hidden, size_t begin, size_t end, Memory& scratch) const {
  const size_t columns = padded(common_.size());
  if (columns == 0) return;
  kernels::gemm({.m = end - begin,
                 .n = columns,
                 .k = hidden.cols,
                 .a = hidden.row(begin),
                 .a_row = hidden.stride,
                 .a_col = 1,
                 .b = common_columns_.data(),
                 .b_row = columns,
                 .c = scratch.common_logits.data(),
                 .c_row = columns});
}

// Makes room for all threads, in the training thread, because the threads that take part differ from step to
// step.
void ActiveSetSampler::reserve_scratch(const Modelet& modelet, size_t top, const ThreadPool& pool) {
  const std::optional<hashing::LshIndex>& tables = modelet.retrieval()->tables;
  size_t found = std::min<size_t>(candidates_, modelet.spec().neurons());
  if (tables) found = std::min(found, size_t{tables->options().hash.tables} * tables->options().bucket);
  while (scratch_.size() < pool.threads()) {
    Memory& scratch = scratch_.emplace_back();
    if (tables) tables->reserve(scratch.query);
    scratch.candidates.reserve(kSamplePiece * found);
    scratch.logits.resize(found);
  }
  for (Memory& scratch : scratch_) {
    scratch.common_logits.resize(kSamplePiece * padded(common_.size()));
    scratch.scored.reserve(top);
  }
}

// Retrieves for samples [begin, end). The rows lie anywhere in memory: they are requested here and read when
// all are known.
void ActiveSetSampler::find_candidates(const Modelet& modelet, const Queries& queries, QueryTurn turn,
                                       size_t begin, size_t end, Memory& scratch) const {
  const auto take = [&](uint32_t row) {
    if (is_active(row) || is_common_[row] != 0) return;
    modelet.parameters().prefetch_weights(row);
    scratch.candidates.push_back(row);
  };
  const Retrieval& retrieval = *modelet.retrieval();
  scratch.candidates.clear();
  for (size_t s = begin; s < end; ++s) {
    scratch.ends[s - begin] = scratch.candidates.size();
    if (!turn.of(s)) continue;
    if (retrieval.tables) {
      for (const uint32_t row : retrieval.tables->query_codes(queries.codes(s), candidates_, scratch.query))
        take(row);
    } else if (search_.columns > 0) {
      for (size_t at = s / turn.every; at < search_.rows.size(); at += search_.columns)
        if (search_.rows[at] != LowRankSearch::kNone) take(search_.rows[at]);
    }
  }
  scratch.ends[end - begin] = scratch.candidates.size();
}

const ActiveSet& ActiveSetSampler::select(const Modelet& modelet, std::span<const BatchLabels::Label> labels,
                                          size_t first_sample, ConstMatrix hidden, const Queries& queries,
                                          uint64_t step, ThreadPool& pool) {
  set_.targets.clear();
  set_.drawn = 0;
  if (mode_ == SamplingMode::kFull) {
    add_all();
    add_targets(labels);
    return set_;
  }
  clear();
  add_targets(labels);
  if (mode_ == SamplingMode::kLsh) {
    retrieve(modelet, hidden, queries, top_, pool, best_, turn(step));
    add_retrieved();
  }
  const size_t certain = set_.rows.size();
  add_uniform(modelet, first_sample, step);
  set_.drawn = set_.rows.size() - certain;
  return set_;
}

}  // namespace modelet::shard
