// RankGrid: arranges the ranks of a run as replicas of its model: rank = replica x ranks of a replica +
// index. The ranks of a replica share one copy of the model, each with its own modelets. Ranks with the
// same index hold the same modelets of different copies: they are *peers*. With one replica there is only
// the run's own group.
//
// Replicas may weigh differently in means. If masks were agreed on, sums over replicas are such that no rank learns
// what another one gave (node_agent/replicas/peer_masks.h). Some replicas may take part in a round, and the others not.
//
// Used by the training thread, like the groups.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/collectives/group.h"
#include "node_agent/replicas/participants.h"
#include "node_agent/replicas/peer_masks.h"

namespace modelet::agent {

class RankGrid {
 public:
  // `whole` must outlive this object. `replicas` must divide its size.
  RankGrid(comm::Group& whole, uint32_t replicas);

  comm::Group& replica() { return grid_ ? *grid_->row : whole_; }
  // The group of this rank and its peers, in the order of replicas. Only with several replicas.
  comm::Group& peers() { return *grid_->column; }
  size_t replicas() const { return replicas_; }
  int size() const { return whole_.size(); }
  std::string node_name(int rank) const { return whole_.node_name(rank); }
  void throw_if_interrupted() const { whole_.throw_if_interrupted(); }

  // The tag of the first of `count` operations among peers; the rounds of the others follow. All peers must
  // call this in the same order. If `step` is earlier than that of a previous call, the later step counts.
  comm::Tag peer_tags(uint64_t step, size_t count = 1);

  // Like the function of the same name in gather_numbers.h, but over all ranks of the run: within replicas
  // with `tag`, then among peers. Peers have patience in any case (GroupOptions::column_patience).
  std::vector<std::vector<uint64_t>> all_gather_numbers(comm::Tag tag, std::span<const uint64_t> mine,
                                                        std::span<const size_t> counts, double patience = 1);

  // The last operation: farewells in all groups of this rank (comm::Group). Takes at most comm::kLeavePatience.
  void leave(comm::Tag tag);

  // All ranks must call these at the same time, before any mean. share_weights(): from now on a replica weighs `mine`
  // (the same on all its ranks, at least 1) in means, relative to the others; what a replica says counts up to `most`
  // (0: no limit). agree_on_masks(): sums are masked, with peers that are who they say.
  void share_weights(uint64_t step, uint64_t mine, uint64_t most = 0);
  void agree_on_masks(uint64_t step, const PeerIdentity& identity = {});
  size_t replica_index() const { return replicas_ == 1 ? 0 : static_cast<size_t>(grid_->column->rank()); }

  // Who takes part in the round that begins after `step`: `count` replicas, drawn anew for each round, by all in the same
  // way. Until the first call, and if `count` is 0, all do.
  void draw_participants(uint64_t seed, uint64_t step, size_t count);
  // [replicas] the weight of those that take part, relative to the largest of all, which is 1; of the others 0. All are 1
  // unless weights were shared.
  std::span<const float> weights() const { return round_weights_; }
  const ReplicaSet& participants() const { return participants_; }
  bool takes_part() const { return participants_[replica_index()] != 0; }
  // This replica's part of the weight of those that take part, and of all.
  float own_share() const { return share_of(round_weights_); }
  float own_share_of_all() const { return share_of(weights_); }
  // The largest part that one has of the weight of those that take part.
  float largest_share() const;
  PeerMasks* masks() { return masks_ ? &*masks_ : nullptr; }  // null: sums are not masked

  // For values that are the same on all ranks of a replica. of_first_replica() returns those of the first
  // replica. sums() returns the sums over all, added in the order of replicas; if they are masked, to a precision of 2^-24,
  // of values up to 2^32. mean() is the mean over all by weights; `mine` counts for `part` (0 to 1) of this replica's
  // weight.
  std::vector<double> of_first_replica(uint64_t step, std::span<const double> mine);
  std::vector<double> sums(uint64_t step, std::span<const double> mine);
  double mean(uint64_t step, double mine, double part = 1);

  // The sums of this rank's counters over all its groups.
  struct Totals {
    uint64_t bytes_sent = 0;
    double codec_seconds = 0, wait_seconds = 0;
  };
  Totals totals() const;

 private:
  std::vector<std::vector<uint64_t>> gather_from_replicas(uint64_t step, std::span<const double> mine);
  float share_of(const std::vector<float>& weights) const;

  comm::Group& whole_;
  const size_t replicas_;
  std::optional<comm::Grid> grid_;
  std::vector<float> weights_, round_weights_;  // [replicas]
  ReplicaSet participants_;
  std::optional<PeerMasks> masks_;
  comm::Tag next_;  // tag of the next operation among peers
};

}  // namespace modelet::agent
