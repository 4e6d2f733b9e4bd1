// Masked sums (node_agent/replicas/replica_sync.h): what replicas send, and what becomes of the sums.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "node_agent/replicas/optimizer_state.h"
#include "node_agent/replicas/replica_sync.h"
#include "shard/kernels/elementwise.h"

namespace modelet::agent {

namespace kernels = shard::kernels;

namespace {

// Fixed-point numbers modulo 2^32. What a replica sends was multiplied by its share of the weights, so no sum over
// replicas overflows.
constexpr float kMostUnits = 2147483520;  // the largest float below 2^31
constexpr float kLargestValue = 16;       // of a change, a share, or a mean of gradients
constexpr float kLargestSum = 4096;       // of Adagrad: the root of a sum of squares

}  // namespace

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
    sync_.use_mean(m, row, values, p.has_bias() ? values[cols] : 0, step_);
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

void ReplicaSync::synchronise_masked_state(RankGrid& grid, uint64_t step) {
  MaskedState state(*this, grid, unsynchronised_);
  rows_.run_sums(grid, step, ReplicaSet(grid.replicas(), 1), state);
}

// What is too large for a mean becomes zero.
void ReplicaSync::average_masked(RankGrid& grid, uint64_t step, std::span<const std::span<float>> vectors) {
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
}

}  // namespace modelet::agent
