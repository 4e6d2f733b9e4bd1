// ReplicaSync: keeps the replicas of a model together. Each replica trains on samples of its own (local
// SGD: Stich, ICLR 2019). Every few steps the replicas exchange their changes. Each adds the mean of the
// changes to the weights that all agreed on last:
//
//   change_r  = weights_r - agreed            for the rows that replica r has updated since the last time
//   sent_r    = change_r, rounded by the codec (stochastically)
//   agreed   += mean of sent_r                the same bits on all replicas
//   weights_r = agreed + (change_r - sent_r)
//
// What rounding keeps back stays in the replica's weights, and so in its next change (error feedback: Seide
// et al., Interspeech 2014; Karimireddy et al., ICML 2019). Biases travel exactly.
//
// What the change of a row is divided by depends on the optimiser. Plain SGD: the number of replicas,
// because two half steps make the step of a batch twice as large. Adam and Adagrad: the number of replicas
// that updated the row. Their steps have about the same size whatever the size of the gradient, so a row
// that few samples touch would otherwise fall behind. What was kept back travels with the next change and
// is divided in the same way. synchronise_exactly() gives it the share that it would have had when it was kept back.
//
// The mean of the changes of a row goes through the rule of cluster.rule (node_agent/replicas/mean_rule.h) before it is
// added. What was kept back and what synchronise_exactly() adds of it do not: it is less than a step of the codec.
//
// What a peer sends is data from outside. Rows with values that are not finite are dropped, and longer changes than
// cluster.largest_change are shortened, by all replicas in the same way; both are counted (Refusals).
//
// Means are weighted if the replicas have weights (RankGrid::share_weights): owners of different size.
//
// If sums are masked (RankGrid::masks), each replica sends its part of all rows, as fixed-point numbers that only their
// sum over all replicas makes readable: weight x change, the weight itself if it has updated the row, and the number of
// updates. Nothing is kept back. A sender keeps to the bounds itself; of the sum is checked what must hold for a sum of
// such parts, and a row for which it does not is dropped by all. synchronise_exactly() then gives each row the mean of the optimiser's state over the
// replicas that have updated it, of squares the square of the mean root, in place of one replica's state.
//
// With cluster.noise, each replica shortens all that it has changed to cluster.clip and adds its part of the noise
// (node_agent/replicas/gaussian_noise.h). What is sent then depends on samples in no other way: all rows count as updated,
// and the optimiser's state does not travel. It begins anew where replicas become equal.
//
// Means are over the replicas that take part in the round (RankGrid::draw_participants). The others have changed nothing
// and go on from the mean.
//
// The scales of a direct path (shard/modelet/modelet.h) are few, and every step changes them. All replicas get
// their exact mean.
//
// Optimiser state stays with its replica (as in DiLoCo: Douillard et al., 2023). Only synchronise_exactly() makes
// everything that a checkpoint keeps the same on all replicas. docs/decisions/0016-replicas.md says why.
//
// Owns a copy of the weights ("agreed"). Used by the training thread between two steps; parallel inside.
// docs/wire_format.md describes what is sent each time. Throws PeerError if another replica is missing; the
// weights must not be used any more then.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/parallel/thread_scratch.h"
#include "comm/codec/codec.h"
#include "node_agent/replicas/gaussian_noise.h"
#include "node_agent/replicas/rank_grid.h"
#include "node_agent/replicas/row_exchange.h"
#include "shard/layers/network.h"

namespace modelet::agent {

class ReplicaSync {
 public:
  // All replicas must begin with the same weights: those of `network`, which must outlive this object.
  explicit ReplicaSync(shard::Network& network);
  ReplicaSync(const ReplicaSync&) = delete;
  ReplicaSync& operator=(const ReplicaSync&) = delete;

  // Every rank of every replica must call these after the same step. `stop`: this replica was asked to stop
  // (all its ranks must say the same). Returns whether any replica was.
  bool average(RankGrid& grid, uint64_t step, bool stop);
  // Like average(), but afterwards all replicas are equal to the bit. It also sends exactly what the codec
  // kept back. A row's optimiser state and clock become those of one of the replicas that have updated the
  // row since the last synchronise_exactly(). Hash tables are built again.
  bool synchronise_exactly(RankGrid& grid, uint64_t step, bool stop);

  // After each local step, whose learning rate is given: what cluster.rule adds to it. `replica`: that of this rank.
  void pull_back(size_t replica, uint64_t step, float learning_rate);

  // Rows that were sent and are not in the means: since the beginning, and the same on all ranks that hold the same
  // modelets. Those of masked sums count for the replica in place `replicas`, because nobody knows who sent them.
  struct Refusals {
    uint64_t dropped = 0, shortened = 0;
  };
  Refusals refusals(size_t replica) const {
    return {refusals_[replica].dropped.load(), refusals_[replica].shortened.load()};
  }
  // Rows that this replica has shortened before it sent them masked; rounds whose change was longer than cluster.clip.
  uint64_t own_shortened() const { return own_shortened_; }
  uint64_t own_clipped() const { return own_clipped_; }

  // Without messages. It grows to what base/experiment/memory.h says.
  size_t memory_bytes() const;

 private:
  // A modelet, and the weights and biases that all replicas agreed on. The clocks in `agreed` are those
  // that this replica's rows had the last time.
  struct Copy {
    shard::Modelet* modelet;
    shard::Parameters agreed;
    std::vector<float> shares;  // [rows] of this replica's last change in the mean
  };
  // The kinds of data that travel (RowExchange::Content).
  class Changes;
  class KeptBack;
  class State;
  class MaskedRows;  // what the next two have in common
  class MaskedChanges;
  class MaskedState;

  struct Counts {
    std::atomic<uint64_t> dropped = 0, shortened = 0;
  };

  RowSet updated_rows();
  float accepted(size_t replica, const float* change, size_t cols, float bias);
  void use_mean(size_t m, size_t row, float* mean, float bias, uint64_t step);
  void read_change(const Copy& copy, size_t row, float* out);
  void take_agreed();
  std::vector<RowSet> one_of_each(std::vector<RowSet> sets) const;
  void average_vectors(RankGrid& grid, uint64_t step, std::span<const std::span<float>> vectors);
  void average_scales(RankGrid& grid, uint64_t step, bool with_state);
  void average_query_means(RankGrid& grid, uint64_t step);
  // Of masked sums (masked_sync.cc).
  bool average_masked(RankGrid& grid, uint64_t step, bool stop);
  void average_masked(RankGrid& grid, uint64_t step, std::span<const std::span<float>> vectors);
  void synchronise_masked_state(RankGrid& grid, uint64_t step);
  void begin_state_anew();

  shard::Network& network_;
  const uint64_t seed_;
  const comm::Codec &exact_, &codec_;
  std::vector<Copy> copies_;
  RowExchange rows_;
  std::vector<Counts> refusals_;  // [replicas + 1]
  std::atomic<uint64_t> own_shortened_ = 0;
  uint64_t own_clipped_ = 0;
  std::optional<GaussianNoise> noise_;
  uint64_t noisy_step_ = ~uint64_t{0};  // after which the last sum with noise was made
  RowSet unsynchronised_;  // rows updated here since the last synchronise_exactly()
  ThreadScratch<float> scratch_;
  ThreadScratch<uint32_t> words_;  // for masked rows
};

}  // namespace modelet::agent
