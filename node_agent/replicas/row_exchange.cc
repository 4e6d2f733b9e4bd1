#include "node_agent/replicas/row_exchange.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <variant>

#include "base/error.h"
#include "base/rng.h"

namespace modelet::agent {
namespace {

constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();
static_assert(kSyncRowMultiple % RowExchange::kWordBits == 0, "segments begin with a word of a set");

std::span<std::byte> words_of(Matrix matrix) {
  return std::as_writable_bytes(std::span(matrix.data, matrix.rows * matrix.cols));
}

comm::InBlock block_of(const RowExchange::Tensor& tensor, Matrix matrix) {
  if (tensor.codec == nullptr) return words_of(matrix);
  return matrix;
}

}  // namespace

RowExchange::RowExchange(std::span<const Modelet> modelets, uint64_t seed, ThreadPool& pool)
    : seed_(seed), pool_(pool), modelets_(modelets.begin(), modelets.end()) {
  for (size_t m = 0; m < modelets.size(); ++m) {
    const auto [id, rows, cols] = modelets[m];
    first_word_.push_back(words_);
    words_ += (rows + kWordBits - 1) / kWordBits;
    const size_t most = sync_segment_rows(cols);
    for (size_t first = 0; first < rows; first += most)
      segments_.push_back({m, first, std::min(rows, first + most)});
  }
}

size_t RowExchange::memory_bytes() const {
  size_t sum = 0;
  const auto add = [&sum](const std::vector<Buffer>& tensors) {
    for (const Buffer& buffer : tensors) sum += buffer.memory_bytes();
  };
  for (const auto& tensors : own_) add(tensors);
  for (const auto& tensors : received_) add(tensors);
  for (const Buffer& sums : sums_) sum += sums.memory_bytes();
  return sum;
}

// ---- Sets

std::vector<uint32_t> RowExchange::rows_of(const RowSet& set, const Segment& segment) const {
  std::vector<uint32_t> rows;
  for (size_t first = segment.first; first < segment.last; first += kWordBits)
    for (uint32_t word = set[word_of(segment.modelet, first)]; word != 0; word &= word - 1)
      rows.push_back(static_cast<uint32_t>(first) + static_cast<uint32_t>(std::countr_zero(word)));
  return rows;
}

RowSet RowExchange::all() const {
  RowSet set(words_, 0);
  for (size_t m = 0; m < modelets_.size(); ++m)
    for (size_t row = 0; row < modelets_[m].rows; ++row) set[word_of(m, row)] |= bit_of(row);
  return set;
}

// The message has one more word, which says whether the replica has been asked to stop.
std::vector<RowSet> RowExchange::gather_sets(RankGrid& grid, uint64_t step, const RowSet& mine,
                                             bool& stop) const {
  const auto self = static_cast<size_t>(grid.peers().rank());
  std::vector<RowSet> sets(grid.replicas(), RowSet(words_ + 1));
  std::vector<std::vector<comm::InBlock>> theirs(sets.size());
  for (size_t replica = 0; replica < sets.size(); ++replica)
    theirs[replica].push_back(std::as_writable_bytes(std::span(sets[replica])));
  std::ranges::copy(mine, sets[self].begin());
  sets[self].back() = stop ? 1 : 0;
  const comm::OutBlock out{.bytes = std::as_bytes(std::span(sets[self]))};
  grid.peers().all_gather(grid.peer_tags(step), std::span(&out, 1), theirs);

  for (size_t replica = 0; replica < sets.size(); ++replica) {
    stop |= sets[replica].back() != 0;
    sets[replica].pop_back();
    // Bits past a modelet's last row would be rows that do not exist.
    for (size_t m = 0; m < modelets_.size(); ++m)
      if (const size_t rows = modelets_[m].rows, rest = rows % kWordBits; rest != 0)
        if (sets[replica][word_of(m, rows)] >> rest != 0)
          throw FormatError("replica " + std::to_string(replica) + " (" +
                            grid.peers().node_name(static_cast<int>(replica)) +
                            ") sent rows that its modelets do not have");
  }
  return sets;
}

// ---- Rows

const float* RowExchange::Arrived::row(size_t replica, size_t t, size_t i) const {
  const uint32_t place = places[replica][i];
  return place == kNowhere ? nullptr : from[replica][t].row(place);
}

size_t RowExchange::Arrived::senders(size_t i) const {
  return static_cast<size_t>(
      std::ranges::count_if(places, [i](const auto& of_replica) { return of_replica[i] != kNowhere; }));
}

// One call of run().
struct RowExchange::Call {
  comm::Group& peers;
  const uint64_t step;
  const comm::Tag first;  // tag of the first segment; each segment has a round
  const std::vector<RowSet>& sets;
  Content& content;

  size_t self() const { return static_cast<size_t>(peers.rank()); }
};

void RowExchange::run(RankGrid& grid, uint64_t step, const std::vector<RowSet>& sets, Content& content) {
  const Call call{grid.peers(), step, grid.peer_tags(step, segments_.size()), sets, content};
  for (size_t s = 0; s < segments_.size() + kSyncAhead; ++s) {
    if (s < segments_.size()) send(call, s);
    if (s < kSyncAhead) continue;
    collect(call, s - kSyncAhead);
    apply_arrived(segments_[s - kSyncAhead].modelet, content);
  }
}

void RowExchange::apply_arrived(size_t modelet, Content& content) {
  pool_.for_pieces(arrived_.rows.size(), kRowPiece, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) content.apply(modelet, arrived_, i);
  });
}

// Reads and sends this replica's rows. Afterwards the buffers hold them as the others will decode them. The
// seed of stochastic rounding follows from what is rounded and when, not from the node that holds it. It
// differs between replicas, so that errors average out.
void RowExchange::send(const Call& call, size_t s) {
  const auto [modelet, first, last] = segments_[s];
  const std::vector<Tensor> tensors = call.content.tensors(modelet);
  const std::vector<uint32_t> rows = rows_of(call.sets[call.self()], segments_[s]);
  const comm::Rounding rounding{
      .seed = Rng(seed_, {kStreamReplicaCodec, call.step, modelets_[modelet].id, first, call.self()}).next()};
  std::vector<Buffer>& own = own_[s % own_.size()];
  own.resize(std::max(own.size(), tensors.size()));
  out_.clear();
  as_received_.clear();
  for (size_t t = 0; t < tensors.size(); ++t) {
    const Matrix matrix = own[t].resize(rows.size(), tensors[t].cols);
    pool_.for_pieces(rows.size(), kRowPiece, [&, modelet = modelet](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) call.content.read(modelet, rows[i], t, matrix.row(i));
    });
    as_received_.push_back(block_of(tensors[t], matrix));
    if (tensors[t].codec != nullptr)
      out_.push_back({tensors[t].codec, matrix, rounding});
    else
      out_.push_back({.bytes = words_of(matrix)});
  }
  call.peers.send_all(call.first.later(s), out_, as_received_);
}

void RowExchange::collect(const Call& call, size_t s) {
  const std::vector<Tensor> tensors = call.content.tensors(segments_[s].modelet);
  arrived_.from.assign(call.sets.size(), {});
  in_.assign(call.sets.size(), {});
  received_.resize(call.sets.size());
  for (size_t replica = 0; replica < call.sets.size(); ++replica) {
    const size_t count = rows_of(call.sets[replica], segments_[s]).size();
    std::vector<Buffer>& buffers = replica == call.self() ? own_[s % own_.size()] : received_[replica];
    buffers.resize(std::max(buffers.size(), tensors.size()));
    for (size_t t = 0; t < tensors.size(); ++t) {
      const Matrix matrix = buffers[t].resize(count, tensors[t].cols);
      arrived_.from[replica].push_back(matrix);
      in_[replica].push_back(block_of(tensors[t], matrix));
    }
  }
  call.peers.collect(call.first.later(s), in_);
  place_rows(call, segments_[s]);
}

// Lists the rows that any replica sent, and finds where they are in each replica's matrices.
void RowExchange::place_rows(const Call& call, const Segment& segment) {
  arrived_.places.assign(call.sets.size(), {});
  arrived_.rows.clear();
  std::vector<uint32_t> next(call.sets.size(), 0);
  for (size_t row = segment.first; row < segment.last; ++row) {
    const size_t word = word_of(segment.modelet, row);
    const auto has = [&](const RowSet& set) { return (set[word] & bit_of(row)) != 0; };
    if (std::ranges::none_of(call.sets, has)) continue;
    arrived_.rows.push_back(static_cast<uint32_t>(row));
    for (size_t replica = 0; replica < call.sets.size(); ++replica)
      arrived_.places[replica].push_back(has(call.sets[replica]) ? next[replica]++ : kNowhere);
  }
}

// ---- Sums

namespace {

// The rows of a segment that replica r of `replicas` sums.
Matrix part_of(Matrix segment, size_t r, size_t replicas) {
  const size_t first = segment.rows * r / replicas, last = segment.rows * (r + 1) / replicas;
  return segment.row_range(first, last - first);
}

}  // namespace

// Parts of a segment travel in its first round, sums in its second one, which begins when the parts have come. Tags are
// used in the order in which rounds begin.
void RowExchange::run_sums(RankGrid& grid, uint64_t step, const ReplicaSet& of, Content& content) {
  comm::Group& peers = grid.peers();
  const size_t count = segments_.size(), ahead = kSyncAhead;
  const comm::Tag first = grid.peer_tags(step, 2 * (count + ahead));
  const auto of_parts = [&](size_t s) { return first.later(2 * s); };
  const auto of_sums = [&](size_t s) { return first.later(2 * (s + ahead) + 1); };
  for (size_t now = 0; now < count + 2 * ahead; ++now) {
    if (now < count) send_parts(peers, of_parts(now), now, of, content);
    if (const size_t s = now - ahead; now >= ahead && s < count) {
      sum_own_part(peers, of_parts(s), s, of);
      const comm::OutBlock sums{.bytes = words_of(sums_[s % sums_.size()].matrix())};
      peers.send_all(of_sums(s), std::span(&sums, 1));
    }
    if (now < 2 * ahead) continue;
    collect_sums(peers, of_sums(now - 2 * ahead), now - 2 * ahead, content);
    apply_arrived(segments_[now - 2 * ahead].modelet, content);
  }
}

// A replica whose part is not in the sums sends an empty one.
void RowExchange::send_parts(comm::Group& peers, comm::Tag tag, size_t s, const ReplicaSet& of, const Content& content) {
  const auto [modelet, first, last] = segments_[s];
  const auto size = static_cast<size_t>(peers.size());
  const bool is_in_sums = of[static_cast<size_t>(peers.rank())] != 0;
  std::vector<Buffer>& own = own_[s % own_.size()];
  own.resize(std::max<size_t>(own.size(), 1));
  const Matrix matrix = own[0].resize(last - first, content.tensors(modelet)[0].cols);
  if (is_in_sums)
    pool_.for_pieces(matrix.rows, kRowPiece, [&, modelet = modelet, first = first](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) content.read(modelet, first + i, 0, matrix.row(i));
    });
  to_.resize(size);
  for (size_t replica = 0; replica < size; ++replica) {
    to_[replica].clear();
    if (is_in_sums) to_[replica].push_back({.bytes = words_of(part_of(matrix, replica, size))});
  }
  peers.send_each(tag, to_);
}

void RowExchange::sum_own_part(comm::Group& peers, comm::Tag tag, size_t s, const ReplicaSet& of) {
  const auto size = static_cast<size_t>(peers.size()), self = static_cast<size_t>(peers.rank());
  const Matrix own = part_of(own_[s % own_.size()][0].matrix(), self, size);
  const Matrix sums = sums_[s % sums_.size()].resize(own.rows, own.cols);
  received_.resize(size);
  in_.assign(size, {});
  std::vector<Matrix> parts;
  for (size_t replica = 0; replica < size; ++replica) {
    received_[replica].resize(std::max<size_t>(received_[replica].size(), 1));
    if (of[replica] == 0) continue;
    parts.push_back(replica == self ? own : received_[replica][0].resize(own.rows, own.cols));
    in_[replica].push_back(words_of(parts.back()));
  }
  peers.collect(tag, in_);
  pool_.for_pieces(sums.rows, kRowPiece, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      for (size_t c = 0; c < own.cols; ++c) {
        uint32_t sum = 0;
        for (const Matrix& each : parts) sum += std::bit_cast<uint32_t>(each.row(i)[c]);
        sums.row(i)[c] = std::bit_cast<float>(sum);
      }
  });
}

void RowExchange::collect_sums(comm::Group& peers, comm::Tag tag, size_t s, const Content& content) {
  const auto [modelet, first, last] = segments_[s];
  const auto size = static_cast<size_t>(peers.size()), self = static_cast<size_t>(peers.rank());
  const Matrix all = received_[self][0].resize(last - first, content.tensors(modelet)[0].cols);
  in_.assign(size, {});
  for (size_t replica = 0; replica < size; ++replica)
    in_[replica].push_back(words_of(part_of(all, replica, size)));
  std::ranges::copy(words_of(sums_[s % sums_.size()].matrix()), std::get<std::span<std::byte>>(in_[self][0]).begin());
  peers.collect(tag, in_);
  arrived_.from.assign(1, {all});
  arrived_.rows.resize(all.rows);
  std::iota(arrived_.rows.begin(), arrived_.rows.end(), static_cast<uint32_t>(first));
  arrived_.places.assign(1, std::vector<uint32_t>(all.rows));
  std::iota(arrived_.places[0].begin(), arrived_.places[0].end(), 0u);
}

}  // namespace modelet::agent
