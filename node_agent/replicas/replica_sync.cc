#include "node_agent/replicas/replica_sync.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "node_agent/replicas/mean_rule.h"
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

// Whether a step of this optimiser grows with the gradient.
bool steps_follow_gradients(OptimizerKind kind) { return kind == OptimizerKind::kSgd; }

// The arrays that synchronise_exactly() makes the same on all replicas, besides weights and biases.
std::vector<shard::Parameters::Array> state_arrays(shard::Parameters& parameters) {
  std::vector<shard::Parameters::Array> arrays = parameters.arrays();
  std::erase_if(arrays,
                [](const auto& array) { return !std::string_view(array.name).starts_with("optimizer."); });
  return arrays;
}

size_t width(const shard::Parameters::Array& array) { return array.shape.size() == 2 ? array.shape[1] : 1; }

// The codec with which an array travels exactly. Null: it travels as words, as clocks do.
const comm::Codec* codec_of(const shard::Parameters::Array& array) {
  switch (array.dtype) {
    case shard::DType::kF32:
      return &comm::codec_of(CodecKind::kNone);
    case shard::DType::kBF16:
      return &comm::codec_of(CodecKind::kBf16);
    default:
      return nullptr;
  }
}

// Convert a row of an array to the form in which it travels, and back.
void read_row(const shard::Parameters::Array& array, size_t r, float* out) {
  const std::byte* row = array.first + r * array.stride_bytes;
  if (array.dtype != shard::DType::kBF16) {
    std::memcpy(out, row, array.row_bytes);
    return;
  }
  for (size_t c = 0; c < width(array); ++c) {
    Bf16 value;
    std::memcpy(&value, row + c * sizeof value, sizeof value);
    out[c] = to_float(value);
  }
}
void write_row(const shard::Parameters::Array& array, size_t r, const float* values) {
  std::byte* row = array.first + r * array.stride_bytes;
  if (array.dtype != shard::DType::kBF16) {
    std::memcpy(row, values, array.row_bytes);
    return;
  }
  for (size_t c = 0; c < width(array); ++c) {
    const Bf16 value = nearest_bf16(values[c]);
    std::memcpy(row + c * sizeof value, &value, sizeof value);
  }
}

void clear_row(const shard::Parameters::Array& array, size_t r) {
  std::memset(array.first + r * array.stride_bytes, 0, array.row_bytes);
}

// Whether an array of state has squares of gradients, or sums of them.
bool holds_squares(const shard::Parameters::Array& array, OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdam:
      return std::string_view(array.name).ends_with("second");
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kRmsprop:
      return true;
    case OptimizerKind::kSgd:
      return false;
  }
  return false;
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
void ReplicaSync::use_mean(size_t m, size_t row, float* mean, float bias, Rng rng) {
  const Copy& copy = copies_[m];
  shard::Parameters& agreed = copies_[m].agreed;
  const Experiment::Cluster& cluster = network_.experiment().cluster;
  if (const std::span<shard::Parameters> moments = copy.modelet->moments(); !moments.empty()) {
    shard::Parameters &first = moments.front(), &second = moments.back();
    apply_rule(cluster, {mean, agreed.cols()}, first.floats().row(row), second.floats().row(row));
    if (agreed.has_bias()) apply_rule(cluster, {&bias, 1}, &first.bias(row), &second.bias(row));
  }
  kernels::add(agreed.weights().row(row, scratch_.mine() + 2 * agreed.cols()), mean, agreed.cols());
  agreed.set_row(row, mean, rng);
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
      // All replicas round `agreed` with the same seed, so that they agree. Each rounds its own weights with
      // its own seed.
      const uint64_t seed = sync_.seed_, modelet = copy.modelet->spec().id, number = p.number(row);
      sync_.use_mean(m, row, sum, bias * share, Rng(seed, {kStreamReplicaAgreed, step_, kChange, modelet, number}));
    }
    kernels::add(agreed.weights().row(row, scratch), kept_back, cols);
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

// ---- masked sums

// Fixed-point numbers modulo 2^32. What a replica sends was multiplied by its share of the weights, so no sum over
// replicas overflows.
constexpr float kMostUnits = 2147483520;  // the largest float below 2^31
constexpr float kLargestValue = 16;       // of a change, a share, or a mean of gradients
constexpr float kLargestSum = 4096;       // of Adagrad: the root of a sum of squares

// A row of words: values that are weighted, this replica's share if it has updated the row, and a count. All are zero
// in rows that it has not updated.
class ReplicaSync::MaskedRows : public RowExchange::Content {
 public:
  // `of`: the replicas in the sum; `share`: this one's part of their weight. `mine`: the rows that this replica has
  // updated. `largest`: of the values.
  MaskedRows(ReplicaSync& sync, RankGrid& grid, ReplicaSet of, float share, const RowSet& mine, float largest)
      : sync_(sync),
        replicas_(static_cast<uint32_t>(grid.replicas())),
        of_(std::move(of)),
        count_(static_cast<uint32_t>(std::ranges::count(of_, 1))),
        share_(share),
        largest_(largest),
        masks_(*grid.masks()),
        mine_(mine),
        stream_(masks_.next()) {
    size_t most = 0;
    uint64_t block = 0;
    for (size_t m = 0; m < sync.copies_.size(); ++m) {
      first_block_.push_back(block);
      block += sync.copies_[m].agreed.rows() * blocks_of_row(m);
      most = std::max(most, most_words(m));
    }
    sync.scratch_.reserve(2 * most);
    sync.words_.reserve(most);
  }

  std::vector<RowExchange::Tensor> tensors(size_t m) const override { return {{values(m) + kCounts, nullptr}}; }

  void read(size_t m, size_t row, size_t, float* out) const override {
    const size_t count = values(m);
    const std::span<uint32_t> words(sync_.words_.mine(), count + kCounts);
    std::ranges::fill(words, 0u);
    if ((mine_[sync_.rows_.word_of(m, row)] & RowExchange::bit_of(row)) != 0) {
      float* const values = sync_.scratch_.mine();
      read_values(m, row, values);
      for (size_t i = 0; i < count; ++i) words[i] = to_fixed(values[i], largest_, share_);
      add_noise(stream_, first_block_[m] + row * blocks_of_row(m), words.first(count));
      words[count] = to_fixed(share_, kLargestValue, 1);
      words[count + 1] = updates(m, row);
    }
    masks_.add(stream_, first_block_[m] + row * blocks_of_row(m), words, of_);
    std::memcpy(out, words.data(), words.size_bytes());
  }

  void apply(size_t m, const RowExchange::Arrived& arrived, size_t i) override {
    const size_t count = values(m);
    // One "replica" has sent the sum over all (RowExchange::run_sums).
    const std::span<uint32_t> words(sync_.words_.mine(), count + kCounts);
    std::memcpy(words.data(), arrived.row(0, 0, i), words.size_bytes());
    if (words[count] == 0) return;  // nobody has updated the row
    float* const sums = sync_.scratch_.mine();
    for (size_t v = 0; v < count; ++v) sums[v] = from_fixed(words[v], largest_);
    const float share = from_fixed(words[count], kLargestValue);
    if (is_sum_of_parts({sums, count}, share, words[count + 1])) return use(m, arrived.rows[i], sums, share, words[count + 1]);
    ++sync_.refusals_[replicas_].dropped;
    drop(m, arrived.rows[i]);
  }

 protected:
  virtual size_t values(size_t m) const = 0;
  // Here and in use(), twice as many floats as there are values may be written.
  virtual void read_values(size_t m, size_t row, float* out) const = 0;
  virtual uint32_t updates(size_t, size_t) const { return 0; }
  // `place`: a number of its own for each row. `words`: the values.
  virtual void add_noise(uint64_t /*stream*/, uint64_t /*place*/, std::span<uint32_t> /*words*/) const {}
  // `values`: the sums; `share`: of the replicas that have updated the row, in the weights of all.
  virtual void use(size_t m, size_t row, float* values, float share, uint32_t updates) = 0;
  // The sum is none of parts that replicas may send. Makes the row the same on all replicas.
  virtual void drop(size_t m, size_t row) = 0;

  [[noreturn]] static void refuse_to_send() {
    throw Error(
        "training diverged: a weight has changed too much since the last round, or is no finite number, and nothing "
        "was sent; lower train.learning_rate, or set optimizer.clip");
  }

  ReplicaSync& sync_;
  const uint32_t replicas_;
  const ReplicaSet of_;
  const uint32_t count_;  // of replicas in the sum
  const float share_, largest_;

 private:
  static constexpr size_t kCounts = 2;  // the share, and the number of updates

  // What must hold if each replica has kept to its bounds. Whoever does not, and sends numbers at random, or those of
  // another round, makes the sum a random one. Of these one in 32 has a share between 0 and 1, and a few in 2^32 as few
  // updates.
  bool is_sum_of_parts(std::span<const float> sums, float share, uint32_t updates) const {
    constexpr float kRounding = 0x1p-26f, kRoundingOfOne = 1e-3f;  // of a part, and of all shares
    const uint32_t local_steps = sync_.network_.experiment().exchange.local_steps;
    const float largest = largest_ * (share + kRounding * static_cast<float>(count_));
    return share > 0 && share <= 1 + kRoundingOfOne &&
           updates <= uint64_t{count_} * local_steps &&
           std::ranges::all_of(sums, [largest](float value) { return std::abs(value) <= largest; });
  }

  // The bound of what a replica may change, which it keeps itself: nobody else sees its part.
  static uint32_t to_fixed(float value, float largest, float share) {
    if (!(std::abs(value) <= largest)) refuse_to_send();
    return static_cast<uint32_t>(static_cast<int32_t>(std::nearbyint(value * share / largest * kMostUnits)));
  }
  static float from_fixed(uint32_t sum, float largest) {
    return static_cast<float>(static_cast<int32_t>(sum)) / kMostUnits * largest;
  }

  // At least values(m) + kCounts: of weights, or of the state of the optimiser, and what belongs to the bias.
  size_t most_words(size_t m) const { return 2 * (sync_.copies_[m].agreed.cols() + 1) + kCounts; }
  uint64_t blocks_of_row(size_t m) const { return PeerMasks::blocks_of(most_words(m) * sizeof(uint32_t)); }

  PeerMasks& masks_;
  const RowSet& mine_;
  const uint64_t stream_;
  std::vector<uint64_t> first_block_;  // [modelets] of the masks
};

// How rows have changed since the last time. Afterwards weights and biases are the same on all replicas, and clocks but
// for those of sums with noise.
class ReplicaSync::MaskedChanges final : public MaskedRows {
 public:
  MaskedChanges(ReplicaSync& sync, RankGrid& grid, const RowSet& mine, uint64_t step)
      : MaskedRows(sync, grid, grid.participants(), grid.own_share(), mine, largest_value(sync)), step_(step) {
    const Experiment::Cluster& cluster = sync.network_.experiment().cluster;
    if (cluster.clip == 0 || !grid.takes_part()) return;
    // The most that an owner may change the sum by, and what is left of it for numbers that are still to be rounded.
    const float most = cluster.clip * grid.largest_share(), left = most - rounding_of_all();
    if (left <= most / 2)
      throw Error("nothing was sent: the model is too large for 32 bits a number; set a smaller cluster.noise, fewer owners a "
                  "round, or an equal weight for all, cluster.most_samples = 1");
    const float norm = norm_of_all(mine);
    if (norm > cluster.clip) ++sync.own_clipped_;
    if (const float longest = std::min(cluster.clip, left / share_); norm > longest) shorten_ = longest / norm;
    // The noise of all but one makes up what is promised: each knows its own, and can subtract it.
    const auto others = static_cast<double>(std::max(count_, 2u) - 1);
    deviation_ = cluster.noise * most / std::sqrt(others) / unit();
  }

 private:
  // A sum with noise may be larger than any change: ten standard deviations of the noise must fit.
  static float largest_value(const ReplicaSync& sync) {
    const Experiment::Cluster& cluster = sync.network_.experiment().cluster;
    constexpr float kDeviations = 10 * std::numbers::sqrt2_v<float>;  // two owners add twice the variance
    return cluster.clip > 0 ? cluster.clip * (1 + kDeviations * cluster.noise) : kLargestValue;
  }

  double unit() const { return static_cast<double>(largest_) / kMostUnits; }

  // By how much the vector of all that is sent may become longer when its numbers are rounded to units.
  float rounding_of_all() const {
    double numbers = 0;
    for (size_t m = 0; m < sync_.copies_.size(); ++m)
      numbers += static_cast<double>(sync_.copies_[m].agreed.rows()) * static_cast<double>(values(m));
    return static_cast<float>(0.5 * std::sqrt(numbers) * unit());
  }

  float norm_of_all(const RowSet& mine) {
    std::vector<std::vector<double>> squares;  // of rows, so that the sum does not depend on threads
    for (const Copy& copy : sync_.copies_) squares.emplace_back(copy.agreed.rows());
    sync_.rows_.for_each_row(mine, [&, this](size_t m, size_t row) {
      float* const change = sync_.scratch_.mine();
      read_change_within_bound(m, row, change);
      squares[m][row] = kernels::dot(change, change, values(m));
    });
    double sum = 0;
    for (const auto& of_modelet : squares)
      for (const double square : of_modelet) sum += square;
    if (!std::isfinite(sum)) refuse_to_send();
    return static_cast<float>(std::sqrt(sum));
  }

  size_t values(size_t m) const override {
    const shard::Parameters& agreed = sync_.copies_[m].agreed;
    return agreed.cols() + (agreed.has_bias() ? 1 : 0);
  }

  // Returns whether the row's change was longer than it may be.
  bool read_change_within_bound(size_t m, size_t row, float* out) const {
    const Copy& copy = sync_.copies_[m];
    const shard::Parameters& p = copy.modelet->parameters();
    const size_t cols = p.cols();
    const float* const weights = p.weights().row(row, out);
    const float* const agreed = copy.agreed.weights().row(row, out + cols);
    for (size_t c = 0; c < cols; ++c) out[c] = weights[c] - agreed[c];
    const float bias = p.has_bias() ? p.bias(row) - copy.agreed.bias(row) : 0;
    if (p.has_bias()) out[cols] = bias;
    const float square = kernels::dot(out, out, cols) + bias * bias;
    const float bound = sync_.network_.experiment().cluster.largest_change;
    if (bound == 0 || !std::isfinite(square) || square <= bound * bound) return false;
    kernels::scale(bound / std::sqrt(square), out, values(m));
    return true;
  }

  void read_values(size_t m, size_t row, float* out) const override {
    if (read_change_within_bound(m, row, out)) ++sync_.own_shortened_;
    if (shorten_ < 1) kernels::scale(shorten_, out, values(m));
  }

  void add_noise(uint64_t stream, uint64_t place, std::span<uint32_t> words) const override {
    if (sync_.noise_) sync_.noise_->add(stream, place, deviation_, words);
  }

  // How often a row was updated tells of samples.
  uint32_t updates(size_t m, size_t row) const override {
    if (sync_.noise_) return 1;
    const Copy& copy = sync_.copies_[m];
    return copy.modelet->parameters().clock(row) - copy.agreed.clock(row);
  }

  void use(size_t m, size_t row, float* values, float share, uint32_t updates) override {
    Copy& copy = sync_.copies_[m];
    shard::Parameters &p = copy.modelet->parameters(), &agreed = copy.agreed;
    const size_t cols = agreed.cols();
    const bool of_all = steps_follow_gradients(sync_.network_.experiment().optimizer.kind);
    kernels::scale(of_all ? 1 : 1 / share, values, this->values(m));
    // A mean of changes of which none is too long is not too long; noise may make it so.
    const float factor = sync_.noise_ ? 1 : sync_.accepted(replicas_, values, cols, p.has_bias() ? values[cols] : 0);
    kernels::scale(factor, values, this->values(m));
    const uint64_t modelet = copy.modelet->spec().id, number = p.number(row);
    sync_.use_mean(m, row, values, p.has_bias() ? values[cols] : 0,
                   Rng(sync_.seed_, {kStreamReplicaAgreed, step_, kChange, modelet, number}));
    take_agreed(copy, row, values);
    if (sync_.noise_)
      agreed.clock(row) = p.clock(row);  // of this replica's own steps, as its state of the optimiser
    else  // as many updates as the replicas have made in the mean
      p.clock(row) = agreed.clock(row) += (updates + count_ - 1) / count_;
  }

  void drop(size_t m, size_t row) override {
    Copy& copy = sync_.copies_[m];
    take_agreed(copy, row, sync_.scratch_.mine());
    copy.modelet->parameters().clock(row) = copy.agreed.clock(row);
  }

  static void take_agreed(Copy& copy, size_t row, float* scratch) {
    shard::Parameters &p = copy.modelet->parameters(), &agreed = copy.agreed;
    p.set_row(row, agreed.weights().row(row, scratch));
    if (p.has_bias()) p.bias(row) = agreed.bias(row);
    if (shard::Retrieval* retrieval = copy.modelet->retrieval()) retrieval->changed[row] = 1;
  }

  const uint64_t step_;
  float shorten_ = 1;     // what was changed becomes shorter by this factor
  double deviation_ = 0;  // of the noise of this replica, in units
};

// The state of the optimiser.
class ReplicaSync::MaskedState final : public MaskedRows {
 public:
  MaskedState(ReplicaSync& sync, RankGrid& grid, const RowSet& mine)
      : MaskedRows(sync, grid, ReplicaSet(grid.replicas(), 1), grid.own_share_of_all(), mine,
                   sync.network_.experiment().optimizer.kind == OptimizerKind::kAdagrad ? kLargestSum
                                                                                        : kLargestValue) {
    for (const Copy& copy : sync.copies_) {
      arrays_.push_back(state_arrays(copy.modelet->parameters()));
      std::erase_if(arrays_.back(), [](const auto& array) { return codec_of(array) == nullptr; });  // clocks
    }
  }

 private:
  size_t values(size_t m) const override {
    size_t sum = 0;
    for (const auto& array : arrays_[m]) sum += width(array);
    return sum;
  }

  void read_values(size_t m, size_t row, float* out) const override {
    for (const auto& array : arrays_[m]) {
      read_row(array, row, out);
      if (holds_squares(array))
        for (size_t c = 0; c < width(array); ++c) out[c] = std::sqrt(out[c]);
      out += width(array);
    }
  }

  void use(size_t m, size_t row, float* values, float share, uint32_t) override {
    kernels::scale(1 / share, values, this->values(m));
    for (const auto& array : arrays_[m]) {
      if (holds_squares(array))
        for (size_t c = 0; c < width(array); ++c) values[c] *= values[c];
      write_row(array, row, values);
      values += width(array);
    }
  }

  void drop(size_t m, size_t row) override {
    for (const auto& array : arrays_[m]) clear_row(array, row);
  }

  // The values of an array that travel as roots: a mean of squares that the mean over few owners makes too small would
  // make steps too long, and squares of small numbers would be lost in fixed-point numbers.
  bool holds_squares(const shard::Parameters::Array& array) const {
    return agent::holds_squares(array, sync_.network_.experiment().optimizer.kind);
  }

  std::vector<std::vector<shard::Parameters::Array>> arrays_;  // [modelets]
};

// Sets each of the vectors to its mean over all replicas. One round. What is not finite, or of masked sums too large for
// a mean, is left out.
void ReplicaSync::average_vectors(RankGrid& grid, uint64_t step, std::span<const std::span<float>> vectors) {
  if (grid.masks() != nullptr) {
    std::vector<double> values;
    for (const std::span<float> vector : vectors)
      for (const float value : vector) values.push_back(grid.own_share_of_all() * value);
    values = grid.sums(step, values);
    for (auto next = values.begin(); const std::span<float> vector : vectors)
      for (float& value : vector) {
        value = static_cast<float>(*next++);
        if (std::abs(value) <= kLargestSum) continue;
        value = 0;
        ++refusals_[grid.replicas()].dropped;
      }
    return;
  }
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

// Which rows a replica has updated is not to be seen either, so all rows travel.
bool ReplicaSync::average_masked(RankGrid& grid, uint64_t step, bool stop) {
  const RowSet updated = updated_rows();
  for (size_t w = 0; w < updated.size(); ++w) unsynchronised_[w] |= updated[w];
  rows_.gather_sets(grid, step, rows_.all(), stop);
  if (noise_ && std::exchange(noisy_step_, step) == step) return stop;  // nothing has changed since: it would be noise alone
  const RowSet sent = noise_ ? rows_.all() : updated;
  MaskedChanges changes(*this, grid, sent, step);
  rows_.run_sums(grid, step, grid.participants(), changes);
  return stop;
}

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
    MaskedState state(*this, grid, unsynchronised_);
    rows_.run_sums(grid, step, ReplicaSet(grid.replicas(), 1), state);
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
