// RankGrid: the ranks of a run as replicas of its model. Rank = replica x ranks of a replica + index. The
// ranks of a replica share one copy of the model, each with its modelets. Ranks of equal index hold the same
// modelets of the copies: they are *peers*. With one replica there is only the group of the run.
//
// Used by the training thread, as the groups are.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/collectives/group.h"

namespace modelet::agent {

class RankGrid {
 public:
  // `whole` must outlive it. `replicas` divides its size.
  RankGrid(comm::Group& whole, uint32_t replicas);

  comm::Group& replica() { return grid_ ? *grid_->row : whole_; }
  // The peers of this rank, in the order of replicas. Only with several replicas.
  comm::Group& peers() { return *grid_->column; }
  size_t replicas() const { return replicas_; }
  int size() const { return whole_.size(); }
  std::string node_name(int rank) const { return whole_.node_name(rank); }

  // Tag of the first of `count` operations among peers, whose rounds follow one another. All peers call it in
  // the same order; an earlier step than before counts as that one.
  comm::Tag peer_tags(uint64_t step, size_t count = 1);

  // Like the function of that name (gather_numbers.h), over all ranks: within replicas with `tag`, then among
  // peers.
  std::vector<std::vector<uint64_t>> all_gather_numbers(comm::Tag tag, std::span<const uint64_t> mine,
                                                        std::span<const size_t> counts);

  // Of a value that the ranks of each replica have in common: that of the first replica, and the mean in the
  // order of replicas.
  std::vector<double> of_first_replica(uint64_t step, std::span<const double> mine);
  double mean(uint64_t step, double mine);

  // Counters of this rank in all its groups.
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
  comm::Tag next_;  // among peers
};

}  // namespace modelet::agent
