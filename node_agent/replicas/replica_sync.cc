#include "node_agent/replicas/replica_sync.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/rng.h"
#include "node_agent/replicas/mean_rule.h"
#include "node_agent/replicas/optimizer_state.h"
#include "shard/kernels/elementwise.h"

namespace modelet::agent {

namespace kernels = shard::kernels;

namespace {

shard::Parameters copy_of(const shard::Parameters& p, uint64_t seed) {
  shard::Parameters copy({.rows = p.rows(), .cols = p.cols(), .with_bias = p.has_bias()}, p.precision(),
                         std::nullopt, seed);
  std::vector<float> scratch(p.cols());
  for (size_t r = 0; r < p.rows(); ++r) {
    copy.set_row(r, p.weights().row(r, scratch.data()));
    if (p.has_bias()) copy.bias(r) = p.bias(r);
    copy.clock(r) = p.clock(r);
  }
  return copy;
}

std::vector<RowExchange::Modelet> modelets_of(shard::Network& network) {
  std::vector<RowExchange::Modelet> modelets;
  for (const auto& modelet : network.modelets())
    modelets.push_back({modelet->spec().id, modelet->parameters().rows(), modelet->parameters().cols()});
  return modelets;
}

// What in a step rounds rows. A part of the seed.
enum Pass : uint64_t { kChange, kKeptBack, kPulledBack };

}  // namespace

ReplicaSync::ReplicaSync(shard::Network& network)
    : network_(network),
      seed_(network.experiment().train.seed),
      exact_(comm::codec_of(CodecKind::kNone)),
      codec_(comm::exchange_codecs(network.experiment().exchange).gradients),
      rows_(modelets_of(network), seed_, network.pool()),
      refusals_(network.experiment().cluster.replicas + 1),
      unsynchronised_(rows_.words(), 0),
      scratch_(network.pool()),
      words_(network.pool()) {
  if (network.experiment().cluster.noise > 0) noise_.emplace();
  for (const auto& modelet : network.modelets()) {
    const shard::Parameters& p = modelet->parameters();
    copies_.push_back({modelet.get(), copy_of(p, seed_), std::vector<float>(p.rows(), 1.0f)});
    // No Content needs more, but for masked ones: three rows, and a number for each replica.
    scratch_.reserve(3 * p.cols() + network.experiment().cluster.replicas);
  }
}

size_t ReplicaSync::memory_bytes() const {
  size_t sum = rows_.memory_bytes() + unsynchronised_.size() * sizeof unsynchronised_[0];
  for (const Copy& copy : copies_)
    sum += copy.agreed.memory_bytes() + copy.shares.size() * sizeof copy.shares[0];
  return sum;
}

RowSet ReplicaSync::updated_rows() {
  RowSet set(rows_.words(), 0);
  constexpr size_t kBits = RowExchange::kWordBits;
  for (size_t m = 0; m < copies_.size(); ++m) {
    const shard::Parameters &p = copies_[m].modelet->parameters(), &agreed = copies_[m].agreed;
    const size_t words = (p.rows() + kBits - 1) / kBits;
    network_.pool().for_pieces(words, RowExchange::kRowPiece, [&](size_t begin, size_t end) {
      for (size_t r = begin * kBits; r < std::min(p.rows(), end * kBits); ++r)
        if (p.clock(r) != agreed.clock(r)) set[rows_.word_of(m, r)] |= RowExchange::bit_of(r);
    });
  }
  return set;
}

// How much a change counts that a replica has sent: 1, less if it is too long, 0 if it is dropped.
float ReplicaSync::accepted(size_t replica, const float* change, size_t cols, float bias) {
  const float square = kernels::dot(change, change, cols) + bias * bias;
  if (!std::isfinite(square)) {
    ++refusals_[replica].dropped;
    return 0;
  }
  constexpr float kRounding = 1.001f;  // a mean of changes that are as long as they may be is not shortened again
  const float largest = network_.experiment().cluster.largest_change;
  if (largest == 0 || square <= kRounding * largest * largest) return 1;
  ++refusals_[replica].shortened;
  return largest / std::sqrt(square);
}

// Adds what the rule makes of the mean to what all agreed on. Afterwards `mean` is the sum, before it was rounded.
void ReplicaSync::use_mean(size_t m, size_t row, float* mean, float bias, uint64_t step) {
  const Copy& copy = copies_[m];
  shard::Parameters& agreed = copies_[m].agreed;
  const Experiment::Cluster& cluster = network_.experiment().cluster;
  if (const std::span<shard::Parameters> moments = copy.modelet->moments(); !moments.empty()) {
    shard::Parameters &first = moments.front(), &second = moments.back();
    apply_rule(cluster, {mean, agreed.cols()}, first.floats().row(row), second.floats().row(row));
    if (agreed.has_bias()) apply_rule(cluster, {&bias, 1}, &first.bias(row), &second.bias(row));
  }
  kernels::add(agreed.weights().row(row, scratch_.mine() + 2 * agreed.cols()), mean, agreed.cols());
  // All replicas round `agreed` with the same seed, so that they agree.
  const uint64_t modelet = copy.modelet->spec().id, number = copy.modelet->parameters().number(row);
  agreed.set_row(row, mean, Rng(seed_, {kStreamReplicaAgreed, step, kChange, modelet, number}));
  if (agreed.has_bias()) agreed.bias(row) += bias;
}

void ReplicaSync::pull_back(size_t replica, uint64_t step, float learning_rate) {
  const float keep = keep_of_distance(network_.experiment().cluster, learning_rate);
  if (keep == 1) return;
  rows_.for_each_row(updated_rows(), [&, this](size_t m, size_t row) {
    const Copy& copy = copies_[m];
    shard::Parameters& p = copy.modelet->parameters();
    float *const distance = scratch_.mine() + p.cols(), *const scratch = distance + p.cols();
    const float* const agreed = copy.agreed.weights().row(row, scratch_.mine());
    const float* const weights = p.weights().row(row, scratch);
    for (size_t c = 0; c < p.cols(); ++c) distance[c] = agreed[c] + keep * (weights[c] - agreed[c]);
    const uint64_t modelet = copy.modelet->spec().id;
    p.set_row(row, distance, Rng(seed_, {kStreamReplicaOwn, step, modelet, p.number(row), replica, kPulledBack}));
    if (p.has_bias()) p.bias(row) = copy.agreed.bias(row) + keep * (p.bias(row) - copy.agreed.bias(row));
  });
}

// out = weights - agreed.
void ReplicaSync::read_change(const Copy& copy, size_t row, float* out) {
  const shard::Parameters& p = copy.modelet->parameters();
  float* scratch = scratch_.mine();
  const float* weights = p.weights().row(row, scratch);
  const float* agreed = copy.agreed.weights().row(row, scratch + p.cols());
  for (size_t c = 0; c < p.cols(); ++c) out[c] = weights[c] - agreed[c];
}

// ---- weights and biases

// Sends how rows have changed since the last time, rounded by the codec; biases travel exactly.
class ReplicaSync::Changes final : public RowExchange::Content {
 public:
  Changes(ReplicaSync& sync, uint64_t step, const RankGrid& grid)
      : sync_(sync), step_(step), self_(grid.replica_index()), weights_(grid.weights()) {}

  std::vector<RowExchange::Tensor> tensors(size_t m) const override {
    const shard::Parameters& agreed = sync_.copies_[m].agreed;
    std::vector<RowExchange::Tensor> tensors = {{agreed.cols(), &sync_.codec_}};
    if (agreed.has_bias()) tensors.push_back({1, &sync_.exact_});
    return tensors;
  }

  void read(size_t m, size_t row, size_t t, float* out) const override {
    const Copy& copy = sync_.copies_[m];
    if (t == 0)
      sync_.read_change(copy, row, out);
    else
      *out = copy.modelet->parameters().bias(row) - copy.agreed.bias(row);
  }

  void apply(size_t m, const RowExchange::Arrived& arrived, size_t i) override {
    Copy& copy = sync_.copies_[m];
    shard::Parameters &p = copy.modelet->parameters(), &agreed = copy.agreed;
    const size_t row = arrived.rows[i], cols = p.cols(), replicas = arrived.replicas();
    const bool of_all = steps_follow_gradients(sync_.network_.experiment().optimizer.kind);
    float *const kept_back = sync_.scratch_.mine(), *const sum = kept_back + cols,
                 *const scratch = sum + cols, *const factors = scratch + cols;  // [replicas]
    float divisor = 0;
    for (size_t replica = 0; replica < replicas; ++replica) {
      const float* const change = arrived.row(replica, 0, i);
      factors[replica] =
          change == nullptr ? 0 : sync_.accepted(replica, change, cols, p.has_bias() ? *arrived.row(replica, 1, i) : 0);
      if (of_all || factors[replica] > 0) divisor += weights_[replica];
    }
    // The part of this replica's change that the others do not get. A row that is dropped begins anew.
    std::fill_n(kept_back, cols, 0.0f);
    const float* const own = arrived.row(self_, 0, i);
    if (own == nullptr || factors[self_] > 0) {
      std::copy_n(p.weights().row(row, scratch), cols, kept_back);
      kernels::axpy(-1, agreed.weights().row(row, scratch), kept_back, cols);
    }
    if (own != nullptr && factors[self_] > 0) {
      kernels::axpy(-1, own, kept_back, cols);
      if (divisor > 0) copy.shares[row] = weights_[self_] / divisor;
    }

    std::fill_n(sum, cols, 0.0f);
    float bias = 0;
    for (size_t replica = 0; replica < replicas; ++replica) {
      if (factors[replica] == 0) continue;
      const float factor = weights_[replica] * factors[replica];
      kernels::axpy(factor, arrived.row(replica, 0, i), sum, cols);
      if (p.has_bias()) bias += factor * *arrived.row(replica, 1, i);
    }
    if (divisor > 0) {
      const float share = 1 / divisor;
      kernels::scale(share, sum, cols);
      sync_.use_mean(m, row, sum, bias * share, step_);
    }
    kernels::add(agreed.weights().row(row, scratch), kept_back, cols);
    // Each replica rounds its own weights with its own seed.
    p.set_row(row, kept_back,
              Rng(sync_.seed_, {kStreamReplicaOwn, step_, copy.modelet->spec().id, p.number(row), self_}));
    agreed.clock(row) = p.clock(row);
    if (p.has_bias()) p.bias(row) = agreed.bias(row);
    if (shard::Retrieval* retrieval = copy.modelet->retrieval()) retrieval->changed[row] = 1;
  }

 private:
  ReplicaSync& sync_;
  const uint64_t step_;
  const size_t self_;  // this replica
  const std::span<const float> weights_;
};

// Sends exactly what the codec has kept back of all rows since the replicas were last equal. It was
// missing in the mean when this replica last sent the row, so it gets the share in `agreed` that it would
// have had then.
class ReplicaSync::KeptBack final : public RowExchange::Content {
 public:
  KeptBack(ReplicaSync& sync, uint64_t step) : sync_(sync), step_(step) {}

  std::vector<RowExchange::Tensor> tensors(size_t m) const override {
    return {{sync_.copies_[m].agreed.cols(), &sync_.exact_}};
  }

  void read(size_t m, size_t row, size_t, float* out) const override {
    const Copy& copy = sync_.copies_[m];
    sync_.read_change(copy, row, out);
    kernels::scale(copy.shares[row], out, copy.agreed.cols());
  }

  void apply(size_t m, const RowExchange::Arrived& arrived, size_t i) override {
    Copy& copy = sync_.copies_[m];
    shard::Parameters& agreed = copy.agreed;
    const size_t row = arrived.rows[i], cols = agreed.cols();
    float *const sum = sync_.scratch_.mine(), *const scratch = sum + cols;
    std::fill_n(sum, cols, 0.0f);
    for (size_t replica = 0; replica < arrived.replicas(); ++replica)
      if (const float* kept_back = arrived.row(replica, 0, i))
        if (const float factor = sync_.accepted(replica, kept_back, cols, 0)) kernels::axpy(factor, kept_back, sum, cols);
    kernels::add(agreed.weights().row(row, scratch), sum, cols);
    const uint64_t modelet = copy.modelet->spec().id, number = copy.modelet->parameters().number(row);
    agreed.set_row(row, sum, Rng(sync_.seed_, {kStreamReplicaAgreed, step_, kKeptBack, modelet, number}));
    copy.modelet->parameters().set_row(row, agreed.weights().row(row, scratch));
  }

 private:
  ReplicaSync& sync_;
  const uint64_t step_;
};

// Sets this replica's weights to those that all agreed on. Where nothing was kept back, they differ only in
// the last bits.
void ReplicaSync::take_agreed() {
  rows_.for_each_row(unsynchronised_, [this](size_t m, size_t row) {
    const Copy& copy = copies_[m];
    copy.modelet->parameters().set_row(row, copy.agreed.weights().row(row, scratch_.mine()));
  });
}

// ---- the rest of what a checkpoint keeps

// If several replicas have a row in their sets, only one keeps it. It differs from row to row, so that all
// replicas send about as much. It is the same one in all modelets of a layer that share a row's clock.
std::vector<RowSet> ReplicaSync::one_of_each(std::vector<RowSet> sets) const {
  std::vector<size_t> holders;
  for (size_t m = 0; m < copies_.size(); ++m)
    for (size_t row = 0; row < copies_[m].agreed.rows(); ++row) {
      const size_t word = rows_.word_of(m, row);
      const uint32_t bit = RowExchange::bit_of(row);
      holders.clear();
      for (size_t replica = 0; replica < sets.size(); ++replica)
        if ((sets[replica][word] & bit) != 0) holders.push_back(replica);
      for (size_t i = 0; i < holders.size(); ++i)
        if (i != row % holders.size()) sets[holders[i]][word] &= ~bit;
    }
  return sets;
}

// Sends optimiser state and clocks.
class ReplicaSync::State final : public RowExchange::Content {
 public:
  explicit State(ReplicaSync& sync) : sync_(sync) {
    for (const Copy& copy : sync.copies_) arrays_.push_back(state_arrays(copy.modelet->parameters()));
  }

  std::vector<RowExchange::Tensor> tensors(size_t m) const override {
    std::vector<RowExchange::Tensor> tensors;
    for (const auto& array : arrays_[m]) tensors.push_back({width(array), codec_of(array)});
    return tensors;
  }

  void read(size_t m, size_t row, size_t t, float* out) const override { read_row(arrays_[m][t], row, out); }

  void apply(size_t m, const RowExchange::Arrived& arrived, size_t i) override {
    const size_t row = arrived.rows[i];
    for (size_t replica = 0; replica < arrived.replicas(); ++replica)
      for (size_t t = 0; t < arrays_[m].size(); ++t)
        if (const float* sent = arrived.row(replica, t, i)) take(replica, arrays_[m][t], row, sent);
    Copy& copy = sync_.copies_[m];
    copy.agreed.clock(row) = copy.modelet->parameters().clock(row);
  }

 private:
  // State that makes no sense becomes that of a row that was never updated.
  void take(size_t replica, const shard::Parameters::Array& array, size_t row, const float* sent) {
    const float least = holds_squares(array, sync_.network_.experiment().optimizer.kind)
                            ? 0
                            : std::numeric_limits<float>::lowest();
    const auto makes_sense = [least](float value) { return std::isfinite(value) && value >= least; };
    const std::span<const float> values(sent, width(array));
    if (codec_of(array) == nullptr || std::ranges::all_of(values, makes_sense)) return write_row(array, row, sent);
    ++sync_.refusals_[replica].dropped;
    clear_row(array, row);
  }

  ReplicaSync& sync_;
  std::vector<std::vector<shard::Parameters::Array>> arrays_;  // [modelets]
};

// ---- means of vectors

// Sets each of the vectors to its mean over all replicas. One round. What is not finite, or of masked sums too large for
// a mean, is left out.
void ReplicaSync::average_vectors(RankGrid& grid, uint64_t step, std::span<const std::span<float>> vectors) {
  if (grid.masks() != nullptr) return average_masked(grid, step, vectors);
  const auto view = [](std::span<float> values) {
    return Matrix{values.data(), 1, values.size(), values.size()};
  };
  std::vector<std::vector<std::vector<float>>> of_replicas(grid.replicas());  // [replicas][vectors][values]
  std::vector<std::vector<comm::InBlock>> theirs(grid.replicas());
  std::vector<comm::OutBlock> mine;
  for (const std::span<float> vector : vectors) mine.push_back({&exact_, view(vector)});
  for (size_t replica = 0; replica < grid.replicas(); ++replica) {
    for (const std::span<float> vector : vectors)
      of_replicas[replica].emplace_back(vector.begin(), vector.end());
    for (std::vector<float>& vector : of_replicas[replica]) theirs[replica].push_back(view(vector));
  }
  grid.peers().all_gather(grid.peer_tags(step), mine, theirs);
  for (size_t i = 0; i < vectors.size(); ++i) {
    const std::span<float> mean = vectors[i];
    std::ranges::fill(mean, 0.0f);
    float divisor = 0;
    for (size_t replica = 0; replica < grid.replicas(); ++replica) {
      const std::vector<float>& sent = of_replicas[replica][i];
      if (!std::ranges::all_of(sent, [](float value) { return std::isfinite(value); })) {
        ++refusals_[replica].dropped;
        continue;
      }
      kernels::axpy(grid.weights()[replica], sent.data(), mean.data(), mean.size());
      divisor += grid.weights()[replica];
    }
    if (divisor > 0) kernels::scale(1 / divisor, mean.data(), mean.size());
  }
}

// The means by which queries are centred are running means of each replica.
void ReplicaSync::average_query_means(RankGrid& grid, uint64_t step) {
  std::vector<std::span<float>> means;
  for (const Copy& copy : copies_)
    if (shard::Retrieval* retrieval = copy.modelet->retrieval()) means.emplace_back(retrieval->query_mean);
  average_vectors(grid, step, means);
}

// All output modelets have the same scales. Their clocks are the same on all replicas: every step counts.
void ReplicaSync::average_scales(RankGrid& grid, uint64_t step, bool with_state) {
  std::vector<std::vector<std::span<float>>> scales;  // [output modelets][arrays]
  for (const Copy& copy : copies_) {
    shard::Direct* direct = copy.modelet->direct();
    if (direct == nullptr) continue;
    std::vector<std::span<float>>& arrays = scales.emplace_back();
    arrays.emplace_back(direct->scales.floats().row(0), direct->scales.cols());
    if (!with_state) continue;
    for (const shard::Parameters::Array& array : state_arrays(direct->scales))
      if (array.dtype == shard::DType::kF32)
        arrays.emplace_back(reinterpret_cast<float*>(array.first), width(array));
  }
  if (scales.empty()) return;
  average_vectors(grid, step, scales.front());
  for (const auto& arrays : scales)
    for (size_t i = 0; i < arrays.size(); ++i) std::ranges::copy(scales.front()[i], arrays[i].begin());
}

// ---- average, synchronise exactly

// State of the optimiser that was never synchronised: each replica has its own.
void ReplicaSync::begin_state_anew() {
  rows_.for_each_row(rows_.all(), [this](size_t m, size_t row) {
    Copy& copy = copies_[m];
    for (const auto& array : state_arrays(copy.modelet->parameters())) clear_row(array, row);
    copy.agreed.clock(row) = copy.modelet->parameters().clock(row) = 0;
  });
}

bool ReplicaSync::average(RankGrid& grid, uint64_t step, bool stop) {
  if (grid.masks() != nullptr) return average_masked(grid, step, stop);
  const RowSet updated = updated_rows();
  for (size_t w = 0; w < updated.size(); ++w) unsynchronised_[w] |= updated[w];
  const std::vector<RowSet> sets = rows_.gather_sets(grid, step, updated, stop);
  Changes changes(*this, step, grid);
  rows_.run(grid, step, sets, changes);
  average_scales(grid, step, false);
  return stop;
}

bool ReplicaSync::synchronise_exactly(RankGrid& grid, uint64_t step, bool stop) {
  stop = average(grid, step, stop);
  if (noise_) {
    begin_state_anew();
  } else if (grid.masks() != nullptr) {
    synchronise_masked_state(grid, step);
  } else {
    const std::vector<RowSet> sets = rows_.gather_sets(grid, step, unsynchronised_, stop);
    if (&codec_ != &exact_) {
      KeptBack kept_back(*this, step);
      rows_.run(grid, step, sets, kept_back);
    }
    take_agreed();
    State state(*this);
    rows_.run(grid, step, one_of_each(sets), state);
    average_scales(grid, step, true);
  }
  std::ranges::fill(unsynchronised_, 0);
  if (retrieves_neurons(network_.experiment().sampling.mode)) {
    average_query_means(grid, step);
    network_.output().rebuild_retrieval();
  }
  return stop;
}

}  // namespace modelet::agent
