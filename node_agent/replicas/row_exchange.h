// RowExchange: what replicas have to tell each other of rows of their modelets. Each replica has a set of
// rows, and all get what every replica sends of the rows in its set, a segment of a modelet at a time: the
// next segments travel while one is worked on. What travels, and what becomes of it, is the caller's:
// RowExchange::Content.
//
// Keeps its buffers. Used by the training thread; parallel inside. docs/wire_format.md says what is sent.
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

// Rows of modelets: a bit a row; the rows of each modelet begin with a new word.
using RowSet = std::vector<uint32_t>;

class RowExchange {
 public:
  static constexpr size_t kWordBits = 32;
  static constexpr size_t kRowPiece = 64;  // rows, or words of a set, of a parallel piece

  struct Modelet {
    uint32_t id;  // in the partition
    size_t rows, cols;
  };
  // `seed`: of what codecs round by chance. All replicas give the same modelets.
  RowExchange(std::span<const Modelet> modelets, uint64_t seed, ThreadPool& pool);

  // ---- Sets. A modelet is named by its place among those of the constructor, here and below.
  size_t words() const { return words_; }  // of a set
  size_t word_of(size_t modelet, size_t row) const { return first_word_[modelet] + row / kWordBits; }
  static uint32_t bit_of(size_t row) { return 1u << row % kWordBits; }
  // Calls each(modelet, row) for all rows in the set; different rows from several threads.
  template <class Each>
  void for_each_row(const RowSet& set, const Each& each) const;
  // The sets of all replicas, in one round, and whether any of them wishes to stop: `stop` is of this one
  // before, and of any afterwards. FormatError if another replica's has rows that do not exist.
  std::vector<RowSet> gather_sets(RankGrid& grid, uint64_t step, const RowSet& mine, bool& stop) const;

  // ---- Rows
  // A matrix that travels of a segment, with a row for each row of the sender's set.
  struct Tensor {
    size_t cols;
    const comm::Codec* codec;  // null: not floats but words of 32 bits, which travel as they are
  };
  // What all replicas have sent of a segment.
  struct Arrived {
    std::vector<uint32_t> rows;                 // that some replica sent, ascending
    std::vector<std::vector<uint32_t>> places;  // [replicas][rows] in the replica's matrices; kNowhere
    std::vector<std::vector<Matrix>> from;      // [replicas][tensors]; the own ones as the others see them

    size_t replicas() const { return places.size(); }
    // Of tensor t and the i-th row; nullptr if that replica sent none.
    const float* row(size_t replica, size_t t, size_t i) const;
    size_t senders(size_t i) const;
  };
  class Content {
   public:
    virtual ~Content() = default;
    virtual std::vector<Tensor> tensors(size_t modelet) const = 0;
    // Fills out [cols] with what travels of a row in tensor t. Called by several threads.
    virtual void read(size_t modelet, size_t row, size_t t, float* out) const = 0;
    // The i-th row of `arrived` has come. Called by several threads, each row once.
    virtual void apply(size_t modelet, const Arrived& arrived, size_t i) = 0;
  };
  // All replicas call it with the same `sets` [replicas].
  void run(RankGrid& grid, uint64_t step, const std::vector<RowSet>& sets, Content& content);

  size_t memory_bytes() const;  // of the buffers; they grow to what base/experiment/memory.h says

 private:
  // Rows [first, last) of a modelet, which travel together; `first` begins a word of a set.
  struct Segment {
    size_t modelet, first, last;
  };
  struct Run;

  std::vector<uint32_t> rows_of(const RowSet& set, const Segment& segment) const;
  void send(const Run& run, size_t s);
  void collect(const Run& run, size_t s);
  void place_rows(const Run& run, const Segment& segment);

  const uint64_t seed_;
  ThreadPool& pool_;
  std::vector<Modelet> modelets_;
  std::vector<size_t> first_word_;  // [modelets] of its rows in a set
  size_t words_ = 0;
  std::vector<Segment> segments_;
  // Kept for their memory.
  std::array<std::vector<Buffer>, kSyncAhead + 1> own_;  // [segments under way][tensors]
  std::vector<std::vector<Buffer>> received_;            // [replicas][tensors]
  std::vector<comm::OutBlock> out_;
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
