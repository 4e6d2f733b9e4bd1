#include "shard/inference/sparse_tuner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "base/error.h"

namespace modelet::shard {
namespace {

// Costs in units of a row of the head. Rows of the head are read in order.
constexpr double kCandidateCost = 2;    // a row somewhere in memory
constexpr double kProbeCost = 3;        // hashing for one table, and finding its bucket
constexpr double kCollisionCost = 0.1;  // one row of a bucket

// Rows beyond the last one that won are kept for queries to come.
constexpr size_t kSpareRows = 2;
constexpr size_t kFewestRows = 4096;   // below, scoring everything is as fast
constexpr size_t kShortestHead = 256;  // however few rows win: a query may ask for more labels than the best

constexpr uint32_t kTables[] = {8, 16, 32, 64, 128};
constexpr uint32_t kBuckets[] = {16, 64, 256};
constexpr size_t kCandidates[] = {64, 128, 256, 512, 1024, 2048};
constexpr size_t kRowsPerBucket[] = {16, 64, 256};  // rows a bucket has on average

class Tuner {
 public:
  Tuner(const Scoring& scoring, const RowOrder& order, const QuerySample& queries, uint64_t seed,
        double recall_wanted, ThreadPool& pool)
      : order_(order),
        queries_(queries),
        seed_(seed),
        // Rounded up, and never more than all.
        wanted_(static_cast<size_t>(std::ceil(recall_wanted * static_cast<double>(queries.best.size())))),
        pool_(pool) {
    std::vector<uint32_t> place(order.neurons.size());
    for (size_t i = 0; i < place.size(); ++i) place[order.neurons[i]] = static_cast<uint32_t>(i);
    for (const uint32_t neuron : queries.best) places_.push_back(place[neuron]);
    const size_t last = *std::max_element(places_.begin(), places_.end());
    rows_.emplace(scoring, order, std::min(place.size(), std::max(kSpareRows * (last + 1), kFewestRows)));
  }

  TunedSparse run() {
    head_only();
    for (const size_t rows_per_bucket : kRowsPerBucket) {
      const size_t buckets = rows_->count() / rows_per_bucket;
      if (buckets >= 4) try_bits(static_cast<uint32_t>(std::bit_width(buckets) - 1));
    }
    return best_;
  }

 private:
  // The shortest head that is sufficient by itself.
  void head_only() {
    std::vector<uint32_t> sorted = places_;
    std::sort(sorted.begin(), sorted.end());
    const size_t head = std::min(rows_->count(), std::max<size_t>(sorted[wanted_ - 1] + 1, kShortestHead));
    best_ = {{.rows = head, .head = head},
             static_cast<double>(wanted_) / static_cast<double>(sorted.size()),
             static_cast<double>(head)};
  }

  void try_bits(uint32_t bits) {
    constexpr uint32_t kMost = kTables[std::size(kTables) - 1];
    const auto family = make_sparse_family(rows_->width, kMost, bits, seed_);
    const ConstMatrix rows{rows_->values.data(), rows_->count(), rows_->width, rows_->width};
    const std::vector<uint32_t> codes = hash_rows(*family, rows, order_.row_mean, pool_);
    const std::vector<uint32_t> query_codes = hash_rows(*family, queries_.hidden, order_.query_mean, pool_);
    // Tries heads from the cheapest up, as long as the head alone costs less than the best known settings.
    for (size_t head = kShortestHead; head < rows_->count() && static_cast<double>(head) < best_.cost;
         head *= 2) {
      const CollisionTables tables(codes, kMost, kMost, bits, head);
      for (const uint32_t count : kTables)
        for (const uint32_t bucket : kBuckets)
          try_tables(tables, query_codes,
                     {.rows = rows_->count(), .head = head, .tables = count, .bits = bits, .bucket = bucket});
    }
  }

  // Tries every number of candidates with these tables.
  void try_tables(const CollisionTables& tables, std::span<const uint32_t> query_codes,
                  SparseSettings settings) {
    const double fixed = static_cast<double>(settings.head) + kProbeCost * settings.tables;
    if (fixed >= best_.cost) return;
    constexpr uint32_t kMost = kTables[std::size(kTables) - 1];
    std::vector<size_t> found(std::size(kCandidates));
    size_t collisions = 0;
    for (size_t q = 0; q < places_.size(); ++q) {
      if (places_[q] < settings.head) {
        for (size_t& f : found) ++f;
        continue;
      }
      tables.count(query_codes.subspan(q * kMost, kMost), settings.tables, settings.bucket, scratch_);
      for (const auto& bucket : scratch_.buckets) collisions += bucket.size();
      const size_t position = position_of(places_[q] - static_cast<uint32_t>(settings.head));
      for (size_t i = 0; i < found.size(); ++i) found[i] += position < kCandidates[i] ? 1 : 0;
    }
    const size_t counted =
        std::max<size_t>(1, static_cast<size_t>(std::ranges::count_if(
                                places_, [&](uint32_t place) { return place >= settings.head; })));
    const double per_query = static_cast<double>(collisions) / static_cast<double>(counted);
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] < wanted_) continue;
      settings.candidates = kCandidates[i];
      const double cost = fixed + kCollisionCost * per_query +
                          kCandidateCost * std::min<double>(static_cast<double>(kCandidates[i]), per_query);
      if (cost < best_.cost)
        best_ = {settings, static_cast<double>(found[i]) / static_cast<double>(places_.size()), cost};
      break;  // more candidates only cost more
    }
  }

  // How many rows CollisionTables::choose() takes before this one; resets the counts to zero.
  size_t position_of(uint32_t wanted) {
    const uint32_t count = scratch_.counts[wanted];
    size_t position = count == 0 ? std::numeric_limits<size_t>::max() : 0;
    bool passed = false;
    for (const uint32_t row : scratch_.touched) {
      passed = passed || row == wanted;
      if (count > 0 && (scratch_.counts[row] > count || (scratch_.counts[row] == count && !passed)))
        ++position;
    }
    for (const uint32_t row : scratch_.touched) scratch_.counts[row] = 0;
    return position;
  }

  const RowOrder& order_;
  const QuerySample& queries_;
  const uint64_t seed_;
  const size_t wanted_;
  ThreadPool& pool_;
  std::optional<PackedRows> rows_;
  std::vector<uint32_t> places_;  // [queries] place of the best row in the order
  CollisionTables::Memory scratch_;
  TunedSparse best_;
};

}  // namespace

TunedSparse tune_sparse(const Scoring& scoring, const RowOrder& order, const QuerySample& queries,
                        uint64_t seed, double recall_wanted, ThreadPool& pool) {
  MODELET_CHECK(recall_wanted > 0 && recall_wanted <= 1 && !queries.best.empty());
  return Tuner(scoring, order, queries, seed, recall_wanted, pool).run();
}

}  // namespace modelet::shard
