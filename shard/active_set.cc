#include "shard/active_set.h"

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "shard/kernels/kernels.h"

namespace modelet::shard {

ActiveSetSampler::ActiveSetSampler(const Modelet& modelet, const Experiment& experiment, uint64_t labels)
    : mode_(experiment.sampling.mode),
      seed_(experiment.train.seed),
      candidates_(experiment.sampling.candidates),
      position_(modelet.spec().neurons(), kNone) {
  // Shares of the layer's draws by range, so that they add up whatever the cut.
  const ModeletSpec& spec = modelet.spec();
  const uint64_t uniform = experiment.sampling.uniform;
  draws_ = static_cast<uint32_t>(uniform * spec.end / labels - uniform * spec.begin / labels);
  const uint32_t pieces = experiment.modelets.output_modelets;
  top_ = uses_hash_tables(mode_) ? (experiment.sampling.top + pieces - 1) / pieces : 0;
}

void ActiveSetSampler::add(uint32_t row) {
  if (position_[row] != kNone) return;
  position_[row] = static_cast<uint32_t>(set_.rows.size());
  set_.rows.push_back(row);
}

void ActiveSetSampler::add_targets(const Modelet& modelet, const Batch& batch, const LabelSpread& spread) {
  const ModeletSpec& spec = modelet.spec();
  for (size_t s = 0; s < batch.size(); ++s)
    for (uint64_t i = batch.label_offsets[s]; i < batch.label_offsets[s + 1]; ++i) {
      const uint32_t neuron = spread.neuron(batch.labels[i]);
      if (neuron < spec.begin || neuron >= spec.end) continue;
      const auto row = static_cast<uint32_t>(neuron - spec.begin);
      add(row);
      set_.targets.push_back({static_cast<uint32_t>(s), position_[row]});
    }
}

void ActiveSetSampler::add_uniform(const Modelet& modelet, uint64_t step) {
  const ModeletSpec& spec = modelet.spec();
  const auto neurons = static_cast<uint32_t>(spec.neurons());
  uint32_t wanted = std::min<uint32_t>(draws_, neurons - static_cast<uint32_t>(set_.rows.size()));
  Rng rng(seed_, {kStreamUniform, spec.layer, spec.begin, step});
  // Drawing until enough new rows are found is fast while half of them are free; past that, walk and choose
  // (Knuth, TAOCP 2, algorithm S).
  auto free = static_cast<uint32_t>(neurons - set_.rows.size());
  if (wanted <= free / 2) {
    while (wanted > 0) {
      const uint32_t row = rng.below(neurons);
      if (position_[row] != kNone) continue;
      add(row);
      --wanted;
    }
    return;
  }
  for (uint32_t row = 0; row < neurons && wanted > 0; ++row) {
    if (position_[row] != kNone) continue;
    if (rng.below(free--) >= wanted) continue;
    add(row);
    --wanted;
  }
}

void QueryCodes::hash(const Retrieval& retrieval, ConstMatrix hidden, ThreadPool& pool) {
  tables_ = retrieval.index.options().hash.tables;
  codes_.resize(hidden.rows * tables_);
  scratch_.resize(std::max<size_t>(scratch_.size(), pool.threads()));
  pool.for_pieces(hidden.rows, 16, [&](size_t begin, size_t end) {
    for (size_t s = begin; s < end; ++s) {
      const auto codes = retrieval.index.hash_query({hidden.row(s), hidden.cols}, retrieval.query_mean,
                                                    scratch_[pool.thread_index()]);
      std::copy(codes.begin(), codes.end(), codes_.begin() + static_cast<std::ptrdiff_t>(s * tables_));
    }
  });
}

void ActiveSetSampler::retrieve(const Modelet& modelet, ConstMatrix hidden, const QueryCodes& codes,
                                size_t top, ThreadPool& pool, std::vector<uint32_t>& best) {
  const size_t samples = hidden.rows;
  best.assign(samples * top, kNone);
  scratch_.resize(std::max<size_t>(scratch_.size(), pool.threads()));
  const Parameters& parameters = modelet.parameters();
  const hashing::LshIndex& index = modelet.retrieval()->index;
  pool.for_pieces(samples, 16, [&](size_t begin, size_t end) {
    Scratch& scratch = scratch_[pool.thread_index()];
    for (size_t s = begin; s < end; ++s) {
      const auto found = index.query_codes(codes.of(s), candidates_, scratch.query);
      scratch.scored.clear();
      for (const uint32_t row : found)
        scratch.scored.emplace_back(-parameters.logit(row, hidden.row(s)), row);
      const size_t kept = std::min(top, scratch.scored.size());
      std::partial_sort(scratch.scored.begin(), scratch.scored.begin() + static_cast<std::ptrdiff_t>(kept),
                        scratch.scored.end());
      for (size_t i = 0; i < kept; ++i) best[s * top + i] = scratch.scored[i].second;
    }
  });
}

const ActiveSet& ActiveSetSampler::select(const Modelet& modelet, const Batch& batch,
                                          const LabelSpread& spread, ConstMatrix hidden,
                                          const QueryCodes& codes, uint64_t step, ThreadPool& pool) {
  for (const uint32_t row : set_.rows) position_[row] = kNone;
  set_.rows.clear();
  set_.targets.clear();
  if (mode_ == SamplingMode::kFull) {  // rows in storage order: the products read the weights in place
    set_.rows.resize(modelet.spec().neurons());
    std::iota(set_.rows.begin(), set_.rows.end(), 0u);
    std::copy(set_.rows.begin(), set_.rows.end(), position_.begin());
    add_targets(modelet, batch, spread);
    return set_;
  }
  add_targets(modelet, batch, spread);
  if (mode_ == SamplingMode::kLsh) {
    retrieve(modelet, hidden, codes, top_, pool, best_);
    for (const uint32_t row : best_)
      if (row != kNone) add(row);
  }
  add_uniform(modelet, step);
  return set_;
}

}  // namespace modelet::shard
