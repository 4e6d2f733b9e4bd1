// RankGrid: arranges the ranks of a run as replicas of its model: rank = replica x ranks of a replica +
// index. The ranks of a replica share one copy of the model, each with its own modelets. Ranks with the
// same index hold the same modelets of different copies: they are *peers*. With one replica there is only
// the run's own group.
//
// Replicas may weigh differently in means. If masks were agreed on, sums over replicas are such that no rank learns
// what another one gave (node_agent/replicas/peer_masks.h).
//
// Used by the training thread, like the groups.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/collectives/group.h"
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
  // (the same on all its ranks, at least 1) in means, relative to the others. agree_on_masks(): sums are masked.
  void share_weights(uint64_t step, uint64_t mine);
  void agree_on_masks(uint64_t step);
  // [replicas] relative to the largest, which is 1. All are 1 unless weights were shared.
  std::span<const float> weights() const { return weights_; }
  size_t replica_index() const { return replicas_ == 1 ? 0 : static_cast<size_t>(grid_->column->rank()); }
  // This replica's part of the weight of all.
  float own_share() const;
  PeerMasks* masks() { return masks_ ? &*masks_ : nullptr; }  // null: sums are not masked

  // For values that are the same on all ranks of a replica. of_first_replica() returns those of the first
  // replica. sums() returns the sums, added in the order of replicas; if they are masked, to a precision of 2^-24, of
  // values up to 2^32. mean() is the mean by weights.
  std::vector<double> of_first_replica(uint64_t step, std::span<const double> mine);
  std::vector<double> sums(uint64_t step, std::span<const double> mine);
  double mean(uint64_t step, double mine);

  // The sums of this rank's counters over all its groups.
  struct Totals {
    uint64_t bytes_sent = 0;
    double codec_seconds = 0, wait_seconds = 0;
  };
  Totals totals() const;

 private:
  std::vector<std::vector<uint64_t>> gather_from_replicas(uint64_t step, std::span<const double> mine);

  comm::Group& whole_;
  const size_t replicas_;
  std::optional<comm::Grid> grid_;
  std::vector<float> weights_;  // [replicas]
  std::optional<PeerMasks> masks_;
  comm::Tag next_;  // tag of the next operation among peers
};

}  // namespace modelet::agent
