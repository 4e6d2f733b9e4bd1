#include "node_agent/replica_sync.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "base/cut.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/kernels/kernels.h"

namespace modelet::agent {

namespace kernels = shard::kernels;

namespace {

constexpr size_t kWordBits = 32;
static_assert(kSyncRowMultiple % kWordBits == 0, "segments begin with a word of a RowSet");
constexpr size_t kRowPiece = 64;  // rows, or words, of a parallel piece
constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();

size_t words_of(size_t rows) { return (rows + kWordBits - 1) / kWordBits; }

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

// A step of these is as large as the gradient.
bool steps_follow_gradients(OptimizerKind kind) { return kind == OptimizerKind::kSgd; }

// The arrays of a modelet that settle() makes common, beside weights and biases.
std::vector<shard::Parameters::Array> state_arrays(shard::Modelet& modelet) {
  std::vector<shard::Parameters::Array> arrays = modelet.parameters().arrays();
  std::erase_if(arrays,
                [](const auto& array) { return !std::string_view(array.name).starts_with("optimizer."); });
  return arrays;
}

size_t width(const shard::Parameters::Array& array) { return array.shape.size() == 2 ? array.shape[1] : 1; }

// A row of an array as floats, and back; clocks as the bits of floats.
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

// When in a step the agreed rows are rounded.
enum Pass : uint64_t { kChange, kKeptBack };

}  // namespace

ReplicaSync::ReplicaSync(shard::Network& network)
    : network_(network),
      exact_(comm::require_codec("none")),
      codec_(*comm::exchange_codecs(network.experiment().exchange).gradients),
      scratch_(network.pool()) {
  for (const auto& modelet : network.modelets()) {
    const size_t rows = modelet->parameters().rows();
    copies_.push_back({modelet.get(), copy_of(modelet->parameters(), network.experiment().train.seed), words_,
                       std::vector<uint16_t>(rows, 1)});
    words_ += words_of(rows);
  }
  for (Copy& copy : copies_) {
    const size_t rows = copy.agreed.rows();
    const size_t most = sync_segment_rows(copy.agreed.cols());
    for (size_t first = 0; first < rows; first += most)
      segments_.push_back({copy, first, std::min(rows, first + most)});
  }
  unsettled_.assign(words_, 0);
}

// Follows from what is rounded and when, not from the node that holds it; another one for each replica, so
// that errors average out.
comm::Rounding ReplicaSync::by_chance(const Segment& segment, uint64_t step, size_t replica) const {
  return {.seed = Rng(network_.experiment().train.seed,
                      {kStreamReplicaCodec, step, segment.copy.modelet->spec().id, segment.first, replica})
                      .next()};
}

size_t ReplicaSync::memory_bytes() const {
  size_t sum = 0;
  for (const Copy& copy : copies_)
    sum += copy.agreed.memory_bytes() + copy.divisors.size() * sizeof copy.divisors[0];
  const auto add = [&sum](const std::vector<Buffer>& tensors) {
    for (const Buffer& buffer : tensors) sum += buffer.memory_bytes();
  };
  for (const auto& tensors : own_) add(tensors);
  for (const auto& tensors : received_) add(tensors);
  return sum + unsettled_.size() * sizeof unsettled_[0];
}

bool ReplicaSync::average(RankGrid& grid, uint64_t step, bool stop) {
  const RowSet updated = updated_rows();
  for (size_t w = 0; w < words_; ++w) unsettled_[w] |= updated[w];
  exchange_changes(grid, step, gather_sets(grid, step, updated, stop));
  return stop;
}

bool ReplicaSync::settle(RankGrid& grid, uint64_t step, bool stop) {
  stop = average(grid, step, stop);
  const std::vector<RowSet> sets = gather_sets(grid, step, unsettled_, stop);
  if (&codec_ != &exact_) exchange_kept_back(grid, step, sets);
  take_agreed();
  exchange_state(grid, step, one_of_each(sets));
  unsettled_.assign(words_, 0);
  if (retrieves_neurons(network_.experiment().sampling.mode)) {
    exchange_query_means(grid, step);
    network_.output().rebuild_retrieval();
  }
  return stop;
}

// ---- which rows

ReplicaSync::RowSet ReplicaSync::updated_rows() {
  RowSet set(words_, 0);
  for (const Copy& copy : copies_) {
    const shard::Parameters& p = copy.modelet->parameters();
    network_.pool().for_pieces(words_of(p.rows()), kRowPiece, [&](size_t begin, size_t end) {
      for (size_t r = begin * kWordBits; r < std::min(p.rows(), end * kWordBits); ++r)
        if (p.clock(r) != copy.agreed.clock(r)) set[copy.first_word + r / kWordBits] |= 1u << r % kWordBits;
    });
  }
  return set;
}

std::vector<uint32_t> ReplicaSync::rows_of(const RowSet& set, const Segment& segment) {
  std::vector<uint32_t> rows;
  for (size_t first = segment.first; first < segment.last; first += kWordBits)
    for (uint32_t word = set[segment.copy.first_word + first / kWordBits]; word != 0; word &= word - 1)
      rows.push_back(static_cast<uint32_t>(first) + static_cast<uint32_t>(std::countr_zero(word)));
  return rows;
}

// One round: every replica's set and whether it wishes to stop. The bits travel as those of floats, which the
// exact codec does not change. `stop`: of this replica; becomes that of any.
std::vector<ReplicaSync::RowSet> ReplicaSync::gather_sets(RankGrid& grid, uint64_t step, const RowSet& mine,
                                                          bool& stop) {
  const auto self = static_cast<size_t>(grid.peers().rank());
  std::vector<std::vector<float>> bits(grid.replicas(), std::vector<float>(words_ + 1));
  std::vector<std::vector<comm::InBlock>> theirs(grid.replicas());
  const auto view = [&](size_t replica) { return Matrix{bits[replica].data(), 1, words_ + 1, words_ + 1}; };
  for (size_t replica = 0; replica < bits.size(); ++replica) theirs[replica].push_back(view(replica));
  std::memcpy(bits[self].data(), mine.data(), words_ * sizeof(uint32_t));
  bits[self][words_] = stop ? 1 : 0;
  const comm::OutBlock out{&exact_, view(self)};
  grid.peers().all_gather(grid.peer_tags(step), std::span(&out, 1), theirs);

  std::vector<RowSet> sets(bits.size(), RowSet(words_));
  for (size_t replica = 0; replica < bits.size(); ++replica) {
    std::memcpy(sets[replica].data(), bits[replica].data(), words_ * sizeof(uint32_t));
    stop |= bits[replica][words_] != 0;
    // Bits past a modelet's last row would be rows that do not exist.
    for (const Copy& copy : copies_)
      if (const size_t rows = copy.agreed.rows(), rest = rows % kWordBits; rest != 0)
        if (sets[replica][copy.first_word + rows / kWordBits] >> rest != 0)
          throw FormatError("replica " + std::to_string(replica) + " (" +
                            grid.peers().node_name(static_cast<int>(replica)) +
                            ") sent rows that its modelets do not have");
  }
  return sets;
}

// ---- rows of all replicas

const float* ReplicaSync::Arrived::row(size_t replica, size_t t, size_t i) const {
  const uint32_t place = places[replica][i];
  return place == kNowhere ? nullptr : from[replica][t].row(place);
}

size_t ReplicaSync::Arrived::senders(size_t i) const {
  return static_cast<size_t>(
      std::ranges::count_if(places, [i](const auto& of_replica) { return of_replica[i] != kNowhere; }));
}

// All-gather of the rows in `sets` [replicas], segment by segment; the next ones travel while one is applied.
//   tensors_of(copy)            what travels of each modelet
//   read(copy, row, t, out)     fills out [cols] of tensor t
//   apply(segment, arrived, i)  the i-th row has come; called by several threads, each row once
template <class Tensors, class Read, class Apply>
void ReplicaSync::exchange(RankGrid& grid, uint64_t step, const std::vector<RowSet>& sets,
                           const Tensors& tensors_of, const Read& read, const Apply& apply) {
  comm::Group& peers = grid.peers();
  const auto self = static_cast<size_t>(peers.rank());
  const comm::Tag first_tag = grid.peer_tags(step, segments_.size());
  const auto tag_of = [&](size_t s) {
    return comm::Tag{first_tag.step, static_cast<uint16_t>(first_tag.round + s), first_tag.attempt};
  };
  // Gathers and sends the own rows; afterwards they are here as the others will see them.
  const auto send = [&](size_t s) {
    const Segment& segment = segments_[s];
    const std::vector<Tensor> tensors = tensors_of(segment.copy);
    const std::vector<uint32_t> rows = rows_of(sets[self], segment);
    std::vector<Buffer>& own = own_[s % own_.size()];
    own.resize(std::max(own.size(), tensors.size()));
    out_.clear();
    as_received_.clear();
    for (size_t t = 0; t < tensors.size(); ++t) {
      const Matrix matrix = own[t].resize(rows.size(), tensors[t].cols);
      network_.pool().for_pieces(rows.size(), kRowPiece, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) read(segment.copy, rows[i], t, matrix.row(i));
      });
      out_.push_back({tensors[t].codec, matrix, by_chance(segment, step, self)});
      as_received_.push_back(matrix);
    }
    peers.send_all(tag_of(s), out_, as_received_);
  };
  const auto collect = [&](size_t s) {
    const Segment& segment = segments_[s];
    const std::vector<Tensor> tensors = tensors_of(segment.copy);
    arrived_.from.assign(grid.replicas(), {});
    arrived_.places.assign(grid.replicas(), {});
    arrived_.rows.clear();
    received_.resize(grid.replicas());
    for (size_t replica = 0; replica < grid.replicas(); ++replica) {
      const size_t count = rows_of(sets[replica], segment).size();
      std::vector<Buffer>& buffers = replica == self ? own_[s % own_.size()] : received_[replica];
      buffers.resize(std::max(buffers.size(), tensors.size()));
      for (size_t t = 0; t < tensors.size(); ++t)
        arrived_.from[replica].push_back(buffers[t].resize(count, tensors[t].cols));
    }
    peers.collect(tag_of(s), arrived_.from);
    std::vector<uint32_t> next(grid.replicas(), 0);
    for (size_t row = segment.first; row < segment.last; ++row) {
      const size_t word = segment.copy.first_word + row / kWordBits;
      const auto has = [&](const RowSet& set) { return (set[word] >> row % kWordBits & 1) != 0; };
      if (std::ranges::none_of(sets, has)) continue;
      arrived_.rows.push_back(static_cast<uint32_t>(row));
      for (size_t replica = 0; replica < grid.replicas(); ++replica)
        arrived_.places[replica].push_back(has(sets[replica]) ? next[replica]++ : kNowhere);
    }
  };
  for (size_t s = 0; s < segments_.size() + kSyncAhead; ++s) {
    if (s < segments_.size()) send(s);
    if (s < kSyncAhead) continue;
    collect(s - kSyncAhead);
    network_.pool().for_pieces(arrived_.rows.size(), kRowPiece, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) apply(segments_[s - kSyncAhead], arrived_, i);
    });
  }
}

// ---- weights and biases

void ReplicaSync::exchange_changes(RankGrid& grid, uint64_t step, const std::vector<RowSet>& sets) {
  for (const Copy& copy : copies_) scratch_.reserve(3 * copy.agreed.cols());
  const auto tensors_of = [&](const Copy& copy) {
    std::vector<Tensor> tensors = {{copy.agreed.cols(), &codec_}};
    if (copy.agreed.has_bias()) tensors.push_back({1, &exact_});
    return tensors;
  };
  const auto read = [&](const Copy& copy, size_t row, size_t t, float* out) {
    if (t == 1)
      *out = copy.modelet->parameters().bias(row) - copy.agreed.bias(row);
    else
      read_change(copy, row, out);
  };
  const auto self = static_cast<size_t>(grid.peers().rank());
  exchange(grid, step, sets, tensors_of, read, [&](const Segment& segment, const Arrived& arrived, size_t i) {
    add_change(segment, arrived, i, self, step);
  });
}

// What the codec has kept back of all rows since they were last equal, exactly. It was left out of the mean
// of the last time that this replica sent the row, so it has the share in agreed that it had then.
void ReplicaSync::exchange_kept_back(RankGrid& grid, uint64_t step, const std::vector<RowSet>& sets) {
  for (const Copy& copy : copies_) scratch_.reserve(2 * copy.agreed.cols());
  const auto tensors_of = [&](const Copy& copy) {
    return std::vector<Tensor>{{copy.agreed.cols(), &exact_}};
  };
  const auto read = [&](const Copy& copy, size_t row, size_t, float* out) {
    read_change(copy, row, out);
    kernels::scale(1 / static_cast<float>(copy.divisors[row]), out, copy.agreed.cols());
  };
  exchange(grid, step, sets, tensors_of, read, [&](const Segment& segment, const Arrived& arrived, size_t i) {
    add_kept_back(segment, arrived, i, step);
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

void ReplicaSync::add_change(const Segment& segment, const Arrived& arrived, size_t i, size_t self,
                             uint64_t step) {
  shard::Parameters &p = segment.copy.modelet->parameters(), &agreed = segment.copy.agreed;
  const size_t row = arrived.rows[i], cols = p.cols(), replicas = arrived.places.size();
  const Experiment& experiment = network_.experiment();
  const size_t divisor = steps_follow_gradients(experiment.optimizer.kind) ? replicas : arrived.senders(i);
  float *const kept_back = scratch_.mine(), *const sum = kept_back + cols, *const scratch = sum + cols;
  // What of the own change the others do not know.
  std::copy_n(p.weights().row(row, scratch), cols, kept_back);
  kernels::axpy(-1, agreed.weights().row(row, scratch), kept_back, cols);
  if (const float* own = arrived.row(self, 0, i)) {
    kernels::axpy(-1, own, kept_back, cols);
    segment.copy.divisors[row] = static_cast<uint16_t>(divisor);
  }

  std::fill_n(sum, cols, 0.0f);
  float bias = 0;
  for (size_t replica = 0; replica < replicas; ++replica) {
    const float* change = arrived.row(replica, 0, i);
    if (change == nullptr) continue;
    kernels::add(change, sum, cols);
    if (p.has_bias()) bias += *arrived.row(replica, 1, i);
  }
  const float share = 1 / static_cast<float>(divisor);
  kernels::scale(share, sum, cols);
  kernels::add(agreed.weights().row(row, scratch), sum, cols);
  // All replicas round alike, so that they agree; each its own weights by itself.
  const uint64_t seed = experiment.train.seed, modelet = segment.copy.modelet->spec().id;
  agreed.set_row(row, sum, Rng(seed, {kStreamReplicaAgreed, step, kChange, modelet, row}));
  kernels::add(agreed.weights().row(row, scratch), kept_back, cols);
  p.set_row(row, kept_back, Rng(seed, {kStreamReplicaOwn, step, modelet, row, self}));
  agreed.clock(row) = p.clock(row);
  if (p.has_bias()) {
    bias *= share;
    p.bias(row) = agreed.bias(row) += bias;
  }
  if (shard::Retrieval* retrieval = segment.copy.modelet->retrieval()) retrieval->changed[row] = 1;
}

void ReplicaSync::add_kept_back(const Segment& segment, const Arrived& arrived, size_t i, uint64_t step) {
  shard::Parameters& agreed = segment.copy.agreed;
  const size_t row = arrived.rows[i], cols = agreed.cols();
  float *const sum = scratch_.mine(), *const scratch = sum + cols;
  std::fill_n(sum, cols, 0.0f);
  for (size_t replica = 0; replica < arrived.places.size(); ++replica)
    if (const float* part = arrived.row(replica, 0, i)) kernels::add(part, sum, cols);
  kernels::add(agreed.weights().row(row, scratch), sum, cols);
  agreed.set_row(row, sum,
                 Rng(network_.experiment().train.seed,
                     {kStreamReplicaAgreed, step, kKeptBack, segment.copy.modelet->spec().id, row}));
  segment.copy.modelet->parameters().set_row(row, agreed.weights().row(row, scratch));
}

// The own weights become what all agreed upon: where nothing was kept back, but for the last bits.
void ReplicaSync::take_agreed() {
  for (const Segment& segment : segments_) {
    const std::vector<uint32_t> rows = rows_of(unsettled_, segment);
    network_.pool().for_pieces(rows.size(), kRowPiece, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i)
        segment.copy.modelet->parameters().set_row(
            rows[i], segment.copy.agreed.weights().row(rows[i], scratch_.mine()));
    });
  }
}

// ---- what else a checkpoint keeps

// Of the replicas in whose set a row is, one keeps it: another for each row, so that all send about as much.
// The same one in all modelets of a layer that share a row's clock.
std::vector<ReplicaSync::RowSet> ReplicaSync::one_of_each(std::vector<RowSet> sets) const {
  std::vector<size_t> holders;
  for (const Copy& copy : copies_)
    for (size_t row = 0; row < copy.agreed.rows(); ++row) {
      const size_t word = copy.first_word + row / kWordBits;
      const uint32_t bit = 1u << row % kWordBits;
      holders.clear();
      for (size_t replica = 0; replica < sets.size(); ++replica)
        if ((sets[replica][word] & bit) != 0) holders.push_back(replica);
      for (size_t i = 0; i < holders.size(); ++i)
        if (i != row % holders.size()) sets[holders[i]][word] &= ~bit;
    }
  return sets;
}

void ReplicaSync::exchange_state(RankGrid& grid, uint64_t step, const std::vector<RowSet>& sets) {
  const comm::Codec& bf16 = comm::require_codec("bf16");      // exact of what is stored as such
  std::vector<std::vector<shard::Parameters::Array>> arrays;  // [copies]
  for (const Copy& copy : copies_) arrays.push_back(state_arrays(*copy.modelet));
  const auto arrays_of = [&](const Copy& copy) -> const auto& {
    return arrays[static_cast<size_t>(&copy - copies_.data())];
  };
  const auto tensors_of = [&](const Copy& copy) {
    std::vector<Tensor> tensors;
    for (const auto& array : arrays_of(copy))
      tensors.push_back({width(array), array.dtype == shard::DType::kBF16 ? &bf16 : &exact_});
    return tensors;
  };
  const auto read = [&](const Copy& copy, size_t row, size_t t, float* out) {
    read_row(arrays_of(copy)[t], row, out);
  };
  exchange(grid, step, sets, tensors_of, read, [&](const Segment& segment, const Arrived& arrived, size_t i) {
    const auto& of_copy = arrays_of(segment.copy);
    const size_t row = arrived.rows[i];
    for (size_t replica = 0; replica < arrived.places.size(); ++replica)
      for (size_t t = 0; t < of_copy.size(); ++t)
        if (const float* sent = arrived.row(replica, t, i)) write_row(of_copy[t], row, sent);
    segment.copy.agreed.clock(row) = segment.copy.modelet->parameters().clock(row);
  });
}

// One round: queries are centred by the mean of all replicas' running means.
void ReplicaSync::exchange_query_means(RankGrid& grid, uint64_t step) {
  comm::Group& peers = grid.peers();
  const auto view = [](std::vector<float>& values) {
    return Matrix{values.data(), 1, values.size(), values.size()};
  };
  std::vector<shard::Retrieval*> retrievals;
  for (const Copy& copy : copies_)
    if (shard::Retrieval* retrieval = copy.modelet->retrieval()) retrievals.push_back(retrieval);
  std::vector<std::vector<std::vector<float>>> means(grid.replicas());  // [replicas][retrievals][inputs]
  arrived_.from.assign(grid.replicas(), {});
  out_.clear();
  for (shard::Retrieval* retrieval : retrievals) out_.push_back({&exact_, view(retrieval->query_mean)});
  for (size_t replica = 0; replica < grid.replicas(); ++replica) {
    for (const shard::Retrieval* retrieval : retrievals) means[replica].push_back(retrieval->query_mean);
    for (std::vector<float>& mean : means[replica]) arrived_.from[replica].push_back(view(mean));
  }
  peers.all_gather(grid.peer_tags(step), out_, arrived_.from);
  for (size_t i = 0; i < retrievals.size(); ++i) {
    std::vector<float>& mean = retrievals[i]->query_mean;
    std::ranges::fill(mean, 0.0f);
    for (const auto& of_replica : means) kernels::add(of_replica[i].data(), mean.data(), mean.size());
    kernels::scale(1 / static_cast<float>(grid.replicas()), mean.data(), mean.size());
  }
}

}  // namespace modelet::agent
