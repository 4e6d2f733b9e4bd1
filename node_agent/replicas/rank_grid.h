// RankGrid: arranges the ranks of a run as replicas of its model: rank = replica x ranks of a replica +
// index. The ranks of a replica share one copy of the model, each with its own modelets. Ranks with the
// same index hold the same modelets of different copies: they are *peers*. With one replica there is only
// the run's own group.
//
// Used by the training thread, like the groups.
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

  // For values that are the same on all ranks of a replica. of_first_replica() returns those of the first
  // replica, and mean() returns the mean, added in the order of replicas.
  std::vector<double> of_first_replica(uint64_t step, std::span<const double> mine);
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
  comm::Tag next_;  // tag of the next operation among peers
};

}  // namespace modelet::agent
