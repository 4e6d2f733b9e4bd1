#include "node_agent/replicas/rank_grid.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "comm/collectives/gather_numbers.h"

namespace modelet::agent {

namespace {

// Of a number that is masked: its unit, and the largest one that is sent.
constexpr double kSumUnit = 1.0 / (1 << 24), kLargestInSum = 4294967296.0;

uint64_t to_fixed_sum(double value) {
  if (!(std::abs(value) <= kLargestInSum))
    throw Error("a figure of this node's samples is too large, or no number; nothing was sent");
  return static_cast<uint64_t>(std::llround(value / kSumUnit));
}

}  // namespace

RankGrid::RankGrid(comm::Group& whole, uint32_t replicas)
    : whole_(whole), replicas_(replicas), weights_(replicas, 1.0f), round_weights_(weights_), participants_(replicas, 1) {
  if (replicas > 1) grid_ = whole.grid(static_cast<int>(replicas));
}

comm::Tag RankGrid::peer_tags(uint64_t step, size_t count) {
  if (next_.step < step) next_ = {.step = step};
  const comm::Tag first = next_;
  if (first.round + count > std::numeric_limits<uint16_t>::max())
    throw Error(
        "too many modelets for replicas: divide the model more coarsely, or spread it over more nodes");
  next_.round = static_cast<uint16_t>(first.round + count);
  return first;
}

std::vector<std::vector<uint64_t>> RankGrid::all_gather_numbers(comm::Tag tag, std::span<const uint64_t> mine,
                                                                std::span<const size_t> counts,
                                                                double patience) {
  const size_t ranks = counts.size() / replicas_;
  const auto of_replica = [&](size_t replica) { return counts.subspan(replica * ranks, ranks); };
  const auto own = static_cast<size_t>(whole_.rank()) / ranks;
  auto numbers = comm::all_gather_numbers(replica(), tag, mine, of_replica(own), patience);
  if (replicas_ == 1) return numbers;

  std::vector<uint64_t> of_own;
  for (const auto& rank : numbers) of_own.insert(of_own.end(), rank.begin(), rank.end());
  std::vector<size_t> sums;
  for (size_t replica = 0; replica < replicas_; ++replica) {
    const auto each = of_replica(replica);
    sums.push_back(std::accumulate(each.begin(), each.end(), size_t{0}));
  }
  numbers.clear();
  for (const auto& all : comm::all_gather_numbers(peers(), peer_tags(tag.step), of_own, sums)) {
    auto next = all.begin();
    for (const size_t count : of_replica(numbers.size() / ranks)) {
      numbers.emplace_back(next, next + static_cast<std::ptrdiff_t>(count));
      next += static_cast<std::ptrdiff_t>(count);
    }
  }
  return numbers;
}

void RankGrid::leave(comm::Tag tag) {
  replica().say_farewell(tag);
  if (replicas_ > 1) peers().say_farewell(peer_tags(tag.step));
  const double until = replica().clock().now() + comm::kLeavePatience;
  replica().await_farewells();
  if (replicas_ > 1) peers().await_farewells(until - replica().clock().now());
}

std::vector<std::vector<uint64_t>> RankGrid::gather_from_replicas(uint64_t step,
                                                                  std::span<const double> mine) {
  std::vector<uint64_t> bits;
  for (const double value : mine) bits.push_back(std::bit_cast<uint64_t>(value));
  const std::vector<size_t> counts(replicas_, bits.size());
  return comm::all_gather_numbers(peers(), peer_tags(step), bits, counts);
}

std::vector<double> RankGrid::of_first_replica(uint64_t step, std::span<const double> mine) {
  std::vector<double> values(mine.begin(), mine.end());
  if (replicas_ == 1) return values;
  const auto all = gather_from_replicas(step, mine);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::bit_cast<double>(all[0][i]);
  return values;
}

// What others say is cut here as well: whoever wants to weigh more than it may does not cut it.
void RankGrid::share_weights(uint64_t step, uint64_t mine, uint64_t most) {
  MODELET_CHECK(mine > 0, "a replica weighs something");
  if (replicas_ == 1) return;
  const std::vector<size_t> counts(replicas_, 1);
  auto all = comm::all_gather_numbers(peers(), peer_tags(step), std::span(&mine, 1), counts);
  uint64_t largest = 1;
  for (auto& weight : all) {
    weight[0] = std::clamp<uint64_t>(weight[0], 1, most == 0 ? std::numeric_limits<uint64_t>::max() : most);
    largest = std::max(largest, weight[0]);
  }
  for (size_t replica = 0; replica < replicas_; ++replica)
    weights_[replica] = static_cast<float>(static_cast<double>(all[replica][0]) / static_cast<double>(largest));
  round_weights_ = weights_;
}

void RankGrid::draw_participants(uint64_t seed, uint64_t step, size_t count) {
  participants_ = participants_of_round(seed, step, replicas_, count);
  round_weights_ = weights_;
  for (size_t replica = 0; replica < replicas_; ++replica)
    if (participants_[replica] == 0) round_weights_[replica] = 0;
}

void RankGrid::agree_on_masks(uint64_t step, const PeerIdentity& identity) {
  if (replicas_ > 1) masks_.emplace(peers(), peer_tags(step), identity);
}

float RankGrid::share_of(const std::vector<float>& weights) const {
  return weights[replica_index()] / std::accumulate(weights.begin(), weights.end(), 0.0f);
}

float RankGrid::largest_share() const {
  return std::ranges::max(round_weights_) / std::accumulate(round_weights_.begin(), round_weights_.end(), 0.0f);
}

std::vector<double> RankGrid::sums(uint64_t step, std::span<const double> mine) {
  std::vector<double> sums(mine.begin(), mine.end());
  if (replicas_ == 1) return sums;
  std::ranges::fill(sums, 0.0);
  if (!masks_) {
    for (const auto& values : gather_from_replicas(step, mine))
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += std::bit_cast<double>(values[i]);
    return sums;
  }
  std::vector<uint64_t> words;
  for (const double value : mine) words.push_back(to_fixed_sum(value));
  masks_->add(masks_->next(), 0, words, ReplicaSet(replicas_, 1));
  const auto all =
      comm::all_gather_numbers(peers(), peer_tags(step), words, std::vector<size_t>(replicas_, words.size()));
  for (size_t i = 0; i < sums.size(); ++i) {
    uint64_t sum = 0;
    for (const auto& of_replica : all) sum += of_replica[i];
    sums[i] = static_cast<double>(static_cast<int64_t>(sum)) * kSumUnit;
  }
  return sums;
}

double RankGrid::mean(uint64_t step, double mine, double part) {
  const double weight = part * weights_[replica_index()];
  const double own[] = {part > 0 ? mine * weight : 0, weight};
  const std::vector<double> all = sums(step, own);
  return all[1] > 0 ? all[0] / all[1] : 0;
}

RankGrid::Totals RankGrid::totals() const {
  Totals totals;
  const auto add = [&](const comm::Group& group) {
    const comm::Meters& meters = group.meters();
    totals.bytes_sent += meters.bytes_sent();
    totals.codec_seconds += meters.encode_seconds + meters.decode_seconds;
    totals.wait_seconds += meters.wait_seconds;
  };
  add(whole_);
  if (grid_) add(*grid_->row);
  if (grid_) add(*grid_->column);
  return totals;
}

}  // namespace modelet::agent
