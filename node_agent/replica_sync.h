// ReplicaSync: keeps the replicas of a model together. Each trains on samples of its own (local SGD: Stich,
// ICLR 2019); every few steps they exchange what they changed, and each adds the mean of it to what all
// agreed upon:
//
//   change_r  = weights_r - agreed            of the rows that replica r has updated since the last time
//   sent_r    = change_r as the codec rounds it (stochastically)
//   agreed   += mean of sent_r                the same bits on all replicas
//   weights_r = agreed + (change_r - sent_r)
//
// What rounding kept back stays in the replica's weights, and so in its next change (error feedback: Seide et
// al., Interspeech 2014; Karimireddy et al., ICML 2019). Biases travel exactly. A row's change is divided by
// the number of replicas for plain SGD, where two half steps are the step of a batch twice as large; Adam and
// Adagrad make steps of about the same size whatever the gradient's, so a row that few samples touch would
// fall behind: there it is the mean over the replicas that updated it. What was kept back then travels with
// the next change, and is divided as that is. settle() gives it the share that it would have had.
//
// Optimiser state stays with its replica (as in DiLoCo: Douillard et al., 2023), except in settle(), which
// makes everything that a checkpoint keeps the same on all replicas. Why: docs/decisions/0016-replicas.md.
//
// Owns a copy of the weights ("agreed"). Used by the training thread between two steps; parallel inside. What
// is sent each time is written down in docs/wire_format.md. PeerError: another replica is missing; the
// weights are then of no use any more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/cut.h"
#include "comm/codec.h"
#include "node_agent/rank_grid.h"
#include "node_agent/sharding.h"
#include "shard/network.h"
#include "shard/thread_scratch.h"

namespace modelet::agent {

class ReplicaSync {
 public:
  // All replicas begin with the same weights: those of `network`, which must outlive it.
  explicit ReplicaSync(shard::Network& network);
  ReplicaSync(const ReplicaSync&) = delete;
  ReplicaSync& operator=(const ReplicaSync&) = delete;

  // Every rank of every replica calls these after the same step. `stop`: this replica wishes to stop (all its
  // ranks say the same); returns whether any does.
  bool average(RankGrid& grid, uint64_t step, bool stop);
  // Afterwards all replicas are equal bit for bit: what the codec kept back is sent too, exactly; a row's
  // optimiser state and clock become those of one of the replicas that updated it since the last time; hash
  // tables are built anew.
  bool settle(RankGrid& grid, uint64_t step, bool stop);

  // Without messages. Grows to what base/cut.h says.
  size_t memory_bytes() const;

 private:
  // A modelet, and what all replicas agreed upon of it: weights and biases; clocks are those that this
  // replica's rows had the last time.
  struct Copy {
    shard::Modelet* modelet;
    shard::Parameters agreed;
    size_t first_word;               // of its rows in a RowSet
    std::vector<uint16_t> divisors;  // [rows] by what the own change was divided the last time
  };
  // Rows that travel together: [first, last) of a modelet; `first` begins a word of a RowSet.
  struct Segment {
    Copy& copy;
    size_t first, last;
  };
  using RowSet = std::vector<uint32_t>;  // a bit a row of all modelets, each of which begins with a new word
  // A matrix that travels of a segment, with a row for each row of the sender's set.
  struct Tensor {
    size_t cols;
    const comm::Codec* codec;
  };
  // What all replicas have sent of a segment.
  struct Arrived {
    std::vector<uint32_t> rows;                    // that some replica sent, ascending
    std::vector<std::vector<uint32_t>> places;     // [replicas][rows] in the replica's matrices; kNowhere
    std::vector<std::vector<comm::InBlock>> from;  // [replicas][tensors]; the own ones as the others see them

    // Of tensor t and the i-th row; nullptr if that replica sent none.
    const float* row(size_t replica, size_t t, size_t i) const;
    size_t senders(size_t i) const;
  };

  comm::Rounding by_chance(const Segment& segment, uint64_t step, size_t replica) const;
  RowSet updated_rows();
  static std::vector<uint32_t> rows_of(const RowSet& set, const Segment& segment);
  std::vector<RowSet> gather_sets(RankGrid& grid, uint64_t step, const RowSet& mine, bool& stop);
  template <class Tensors, class Read, class Apply>
  void exchange(RankGrid& grid, uint64_t step, const std::vector<RowSet>& sets, const Tensors& tensors_of,
                const Read& read, const Apply& apply);
  void exchange_changes(RankGrid& grid, uint64_t step, const std::vector<RowSet>& sets);
  void exchange_kept_back(RankGrid& grid, uint64_t step, const std::vector<RowSet>& sets);
  void read_change(const Copy& copy, size_t row, float* out);
  void add_change(const Segment& segment, const Arrived& arrived, size_t i, size_t self, uint64_t step);
  void add_kept_back(const Segment& segment, const Arrived& arrived, size_t i, uint64_t step);
  void take_agreed();
  std::vector<RowSet> one_of_each(std::vector<RowSet> sets) const;
  void exchange_state(RankGrid& grid, uint64_t step, const std::vector<RowSet>& sets);
  void exchange_query_means(RankGrid& grid, uint64_t step);

  shard::Network& network_;
  std::vector<Copy> copies_;
  std::vector<Segment> segments_;
  size_t words_ = 0;  // of a RowSet
  RowSet unsettled_;  // rows updated here since the last settle()
  const comm::Codec &exact_, &codec_;
  shard::ThreadScratch<float> scratch_;
  // Kept for their memory.
  std::array<std::vector<Buffer>, kSyncAhead + 1> own_;  // [segments under way][tensors]
  std::vector<std::vector<Buffer>> received_;            // [replicas][tensors]
  std::vector<comm::OutBlock> out_;
  std::vector<comm::InBlock> as_received_;
  Arrived arrived_;
};

}  // namespace modelet::agent
