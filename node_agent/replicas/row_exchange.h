// RowExchange: lets replicas send each other data about rows of their modelets. Each replica has a set of
// rows. All replicas get what each of them sends of the rows in its set. The exchange works on one segment
// of a modelet at a time, while the next segments travel. The caller decides what travels and what becomes
// of it: RowExchange::Content.
//
// Reuses its buffers. Used by the training thread; parallel inside. docs/wire_format.md says what is sent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/array/matrix.h"
#include "base/experiment/memory.h"
#include "base/parallel/thread_pool.h"
#include "comm/codec/codec.h"
#include "comm/messaging/block.h"
#include "node_agent/replicas/rank_grid.h"

namespace modelet::agent {

// A set of rows of all modelets, with a bit for each row. The rows of each modelet begin with a new word.
using RowSet = std::vector<uint32_t>;

class RowExchange {
 public:
  static constexpr size_t kWordBits = 32;
  static constexpr size_t kRowPiece = 64;  // rows, or words of a set, that a thread works on at a time

  struct Modelet {
    uint32_t id;  // in the partition
    size_t rows, cols;
  };
  // `seed`: for stochastic rounding by codecs. All replicas must give the same modelets.
  RowExchange(std::span<const Modelet> modelets, uint64_t seed, ThreadPool& pool);

  // ---- Sets. Here and below, a modelet's number is its place among those of the constructor.
  size_t words() const { return words_; }  // words of a set
  size_t word_of(size_t modelet, size_t row) const { return first_word_[modelet] + row / kWordBits; }
  static uint32_t bit_of(size_t row) { return 1u << row % kWordBits; }
  RowSet all() const;  // every row
  // Calls each(modelet, row) for all rows in the set, from several threads.
  template <class Each>
  void for_each_row(const RowSet& set, const Each& each) const;
  // Exchanges the sets of all replicas, in one round. `stop` says whether this replica was asked to stop;
  // afterwards it says whether any does. Throws FormatError if another replica's set has rows that do not
  // exist.
  std::vector<RowSet> gather_sets(RankGrid& grid, uint64_t step, const RowSet& mine, bool& stop) const;

  // A matrix that travels for each segment. It has a row for each row in the sender's set.
  struct Tensor {
    size_t cols;
    const comm::Codec* codec;  // null: not floats but words of 32 bits, which travel unchanged
  };
  // What all replicas have sent for a segment.
  struct Arrived {
    std::vector<uint32_t> rows;                 // rows that any replica sent, ascending
    std::vector<std::vector<uint32_t>> places;  // [replicas][rows] row in the replica's matrices, or kNowhere
    std::vector<std::vector<Matrix>> from;      // [replicas][tensors]; own ones as the others decode them

    size_t replicas() const { return places.size(); }
    // The i-th row in tensor t of a replica; null if that replica did not send the row.
    const float* row(size_t replica, size_t t, size_t i) const;
    size_t senders(size_t i) const;
  };
  class Content {
   public:
    virtual ~Content() = default;
    virtual std::vector<Tensor> tensors(size_t modelet) const = 0;
    // Fills out [cols] with what travels for a row in tensor t. Called by several threads.
    virtual void read(size_t modelet, size_t row, size_t t, float* out) const = 0;
    // Called for the i-th row of `arrived`: by several threads, once for each row.
    virtual void apply(size_t modelet, const Arrived& arrived, size_t i) = 0;
  };
  // All replicas must call it with the same `sets` [replicas].
  void run(RankGrid& grid, uint64_t step, const std::vector<RowSet>& sets, Content& content);

  // The same for contents of which only sums over all replicas matter: one tensor of words, of all rows of each replica.
  // Each replica sums its part of the rows of a segment and sends the sums to the others, so that of R replicas one
  // sends 2 (R - 1) / R of its words in place of R - 1. Content::apply() gets the sums, modulo 2^32, as if one replica
  // had sent them. The sums are over the replicas `of`, but all sum a part, and all get the sums.
  void run_sums(RankGrid& grid, uint64_t step, const ReplicaSet& of, Content& content);

  size_t memory_bytes() const;  // of the buffers, which grow to what base/experiment/memory.h says

 private:
  // Rows [first, last) of a modelet, which travel together. `first` begins a word of a set.
  struct Segment {
    size_t modelet, first, last;
  };
  struct Call;

  std::vector<uint32_t> rows_of(const RowSet& set, const Segment& segment) const;
  void send(const Call& call, size_t s);
  void collect(const Call& call, size_t s);
  void place_rows(const Call& call, const Segment& segment);
  void send_parts(comm::Group& peers, comm::Tag tag, size_t s, const ReplicaSet& of, const Content& content);
  void sum_own_part(comm::Group& peers, comm::Tag tag, size_t s, const ReplicaSet& of);
  void collect_sums(comm::Group& peers, comm::Tag tag, size_t s, const Content& content);
  void apply_arrived(size_t modelet, Content& content);

  const uint64_t seed_;
  ThreadPool& pool_;
  std::vector<Modelet> modelets_;
  std::vector<size_t> first_word_;  // [modelets] word of a set where its rows begin
  size_t words_ = 0;
  std::vector<Segment> segments_;
  // Members only to reuse their memory.
  std::array<std::vector<Buffer>, kSyncAhead + 1> own_;  // [segments under way][tensors]
  std::vector<std::vector<Buffer>> received_;            // [replicas][tensors]
  std::array<Buffer, kSyncAhead + 1> sums_;              // [segments under way] of this replica's part
  std::vector<comm::OutBlock> out_;
  std::vector<std::vector<comm::OutBlock>> to_;  // [replicas]
  std::vector<comm::InBlock> as_received_;
  std::vector<std::vector<comm::InBlock>> in_;  // [replicas][tensors]
  Arrived arrived_;
};

template <class Each>
void RowExchange::for_each_row(const RowSet& set, const Each& each) const {
  for (const Segment& segment : segments_) {
    const std::vector<uint32_t> rows = rows_of(set, segment);
    pool_.for_pieces(rows.size(), kRowPiece, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) each(segment.modelet, rows[i]);
    });
  }
}

}  // namespace modelet::agent
