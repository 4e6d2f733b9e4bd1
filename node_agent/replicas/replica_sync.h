// ReplicaSync: keeps the replicas of a model together. Each trains on samples of its own (local SGD: Stich,
// ICLR 2019). Every few steps they exchange what they changed, and each adds the mean of the changes to what
// all agreed upon:
//
//   change_r  = weights_r - agreed            of the rows that replica r has updated since the last time
//   sent_r    = change_r as the codec rounds it (stochastically)
//   agreed   += mean of sent_r                the same bits on all replicas
//   weights_r = agreed + (change_r - sent_r)
//
// What rounding kept back stays in the replica's weights, and so in its next change (error feedback: Seide et
// al., Interspeech 2014; Karimireddy et al., ICML 2019). Biases travel exactly. For plain SGD the change of a
// row is divided by the number of replicas, because two half steps are the step of a batch twice as large.
// Adam and Adagrad make steps of about the same size whatever the gradient's, so a row that few samples touch
// would fall behind: there it is the mean over the replicas that updated it. What was kept back then travels
// with the next change, and is divided as that is. settle() gives it the share that it would have had.
//
// Optimiser state stays with its replica (as in DiLoCo: Douillard et al., 2023), except in settle(), which
// makes everything that a checkpoint keeps the same on all replicas. docs/decisions/0016-replicas.md says
// why.
//
// Owns a copy of the weights ("agreed"). Used by the training thread between two steps; parallel inside.
// docs/wire_format.md describes what is sent each time. PeerError: another replica is missing; the weights
// are then of no further use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/parallel/thread_scratch.h"
#include "comm/codec/codec.h"
#include "node_agent/replicas/rank_grid.h"
#include "node_agent/replicas/row_exchange.h"
#include "shard/layers/network.h"

namespace modelet::agent {

class ReplicaSync {
 public:
  // All replicas begin with the same weights: those of `network`, which must outlive it.
  explicit ReplicaSync(shard::Network& network);
  ReplicaSync(const ReplicaSync&) = delete;
  ReplicaSync& operator=(const ReplicaSync&) = delete;

  // Every rank of every replica calls these after the same step. `stop`: this replica wishes to stop (all its
  // ranks say the same). Returns whether any replica does.
  bool average(RankGrid& grid, uint64_t step, bool stop);
  // Afterwards all replicas are equal to the bit: what the codec kept back is sent too, exactly; the
  // optimiser state and clock of a row become those of one of the replicas that updated it since the last
  // time; hash tables are built anew.
  bool settle(RankGrid& grid, uint64_t step, bool stop);

  // Without messages. Grows to what base/experiment/memory.h says.
  size_t memory_bytes() const;

 private:
  // A modelet, and what all replicas agreed upon for it: weights and biases. Clocks are those that this
  // replica's rows had the last time.
  struct Copy {
    shard::Modelet* modelet;
    shard::Parameters agreed;
    std::vector<uint16_t> divisors;  // [rows] by what the own change was divided the last time
  };
  // What travels (RowExchange::Content).
  class Changes;
  class KeptBack;
  class State;

  RowSet updated_rows();
  void read_change(const Copy& copy, size_t row, float* out);
  void take_agreed();
  std::vector<RowSet> one_of_each(std::vector<RowSet> sets) const;
  void exchange_query_means(RankGrid& grid, uint64_t step);

  shard::Network& network_;
  const uint64_t seed_;
  const comm::Codec &exact_, &codec_;
  std::vector<Copy> copies_;
  RowExchange rows_;
  RowSet unsettled_;  // rows updated here since the last settle()
  ThreadScratch<float> scratch_;
};

}  // namespace modelet::agent
