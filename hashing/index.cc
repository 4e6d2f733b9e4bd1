#include "hashing/index.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "base/error.h"

namespace modelet::hashing {
namespace {

BucketOptions bucket_options(const IndexOptions& options) {
  return {options.hash.tables, options.hash.bits, options.bucket, options.hash.seed};
}

// The lowest count, at least 1, with which a row is among the `limit` best. reached [c]: rows with a count >=
// c.
uint32_t lowest_count(std::span<const uint32_t> reached, size_t limit) {
  uint32_t count = static_cast<uint32_t>(reached.size()) - 1;
  while (count > 1 && reached[count] < limit) --count;
  return count;
}

}  // namespace

LshIndex::LshIndex(const IndexOptions& options, size_t rows)
    : options_(options),
      rows_(rows),
      family_(make_hash_family(options.hash)),
      codes_(rows * options.hash.tables, 0),
      centre_(options.centre ? options.hash.dim : 0, 0.0f),
      active_(bucket_options(options), rows),
      standby_(bucket_options(options), rows) {}

void LshIndex::build(ConstRows weights) {
  MODELET_CHECK(weights.rows() == rows_ && weights.cols() == options_.hash.dim);
  rehash_ = Rehash::kNone;
  if (options_.centre) centre_ = mean_row(weights);
  hash_rows(weights, centre_, codes_);
  changes_ = {};
  fill_tables(active_);
}

std::span<const uint32_t> LshIndex::hash_query(std::span<const float> query,
                                               std::span<const float> query_mean,
                                               QueryMemory& scratch) const {
  scratch.codes.resize(options_.hash.tables);
  if (options_.centre && !query_mean.empty()) {
    MODELET_CHECK(query_mean.size() == query.size());
    scratch.centred.resize(query.size());
    std::transform(query.begin(), query.end(), query_mean.begin(), scratch.centred.begin(), std::minus<>());
    query = scratch.centred;
  }
  family_->hash(query, scratch.codes, scratch.hash);
  return scratch.codes;
}

std::span<const uint32_t> LshIndex::query(std::span<const float> query, std::span<const float> query_mean,
                                          size_t limit, QueryMemory& scratch) const {
  return query_codes(hash_query(query, query_mean, scratch), limit, scratch);
}

std::span<const uint32_t> LshIndex::query_codes(std::span<const uint32_t> codes, size_t limit,
                                                QueryMemory& scratch) const {
  const uint32_t tables = options_.hash.tables;
  MODELET_CHECK(codes.size() == tables);
  scratch.counts.resize(std::max(scratch.counts.size(), rows_), 0);
  scratch.touched.clear();
  scratch.reached.assign(tables + 1, 0);
  // Buckets lie anywhere in memory: all are requested before the first is read.
  scratch.buckets.clear();
  for (uint32_t t = 0; t < tables; ++t) active_.prefetch(t, codes[t]);
  for (uint32_t t = 0; t < tables; ++t) {
    scratch.buckets.push_back(active_.bucket(t, codes[t]));
    __builtin_prefetch(scratch.buckets.back().data());
  }
  for (const auto& bucket : scratch.buckets) {
    for (uint32_t row : bucket) {
      const uint32_t count = ++scratch.counts[row];
      if (count == 1) {
        scratch.touched.push_back(row);
      } else {
        ++scratch.reached[count];
      }
    }
  }
  keep_best(limit, scratch);
  return scratch.candidates;
}

// touched and counts -> candidates; sets the counts back to zero.
void LshIndex::keep_best(size_t limit, QueryMemory& scratch) const {
  // Rows above the lowest count are all among the best; rows at that count fill the rest, the lower ones
  // first.
  const uint32_t lowest = scratch.touched.size() <= limit ? 0 : lowest_count(scratch.reached, limit);
  std::vector<uint32_t>& ties = scratch.ties;
  ties.clear();
  scratch.candidates.clear();
  for (uint32_t row : scratch.touched) {
    const uint32_t count = scratch.counts[row];
    scratch.counts[row] = 0;
    if (count == lowest) ties.push_back(row);
    if (count > lowest) scratch.candidates.push_back(row);
  }
  const size_t places = std::min(ties.size(), limit - std::min(limit, scratch.candidates.size()));
  const auto last = ties.begin() + static_cast<ptrdiff_t>(places);
  std::nth_element(ties.begin(), last, ties.end());
  scratch.candidates.insert(scratch.candidates.end(), ties.begin(), last);
}

void LshIndex::reserve(QueryMemory& scratch) const {
  const size_t touched = std::min(rows_, size_t{options_.hash.tables} * options_.bucket);
  scratch.counts.resize(std::max(scratch.counts.size(), rows_), 0);
  scratch.touched.reserve(touched);
  scratch.ties.reserve(touched);
  scratch.candidates.reserve(touched);
  scratch.reached.reserve(options_.hash.tables + 1);
  scratch.buckets.reserve(options_.hash.tables);
  const std::vector<float> zeros(options_.hash.dim);
  hash_query(zeros, zeros, scratch);  // allocates the family's part
}

void LshIndex::begin_rehash(std::span<const uint32_t> rows, ConstRows weights) {
  const size_t dim = options_.hash.dim;
  MODELET_CHECK(rehash_ == Rehash::kNone, "the last re-hash is not finished");
  MODELET_CHECK(weights.rows() == rows_ && weights.cols() == dim);
  MODELET_CHECK(std::is_sorted(rows.begin(), rows.end(), std::less_equal<>()), "rows must ascend strictly");
  MODELET_CHECK(rows.empty() || rows.back() < rows_);
  changes_.rows.assign(rows.begin(), rows.end());
  changes_.weights.resize(rows.size() * dim);
  std::vector<float> scratch(dim);
  for (size_t i = 0; i < rows.size(); ++i)
    std::copy_n(weights.row(rows[i], scratch.data()), dim, &changes_.weights[i * dim]);
  rehash_ = Rehash::kBegun;
}

void LshIndex::work() {
  MODELET_CHECK(rehash_ == Rehash::kBegun, "work() without begin_rehash()");
  const size_t count = changes_.rows.size(), dim = options_.hash.dim;
  const ConstMatrix weights{changes_.weights.data(), count, dim, dim};
  changes_.centre = options_.centre && count == rows_ ? mean_row(weights) : centre_;
  changes_.codes.resize(count * options_.hash.tables);
  hash_rows(weights, changes_.centre, changes_.codes);
  changes_.weights =
      AlignedVector<float>();  // as large as the rows themselves: not kept until the next re-hash
  fill_tables(standby_);
  rehash_ = Rehash::kDone;
}

void LshIndex::finish_rehash() {
  MODELET_CHECK(rehash_ == Rehash::kDone, "finish_rehash() before work() is done");
  apply_changes(codes_);
  centre_ = changes_.centre;
  std::swap(active_, standby_);
  rehash_ = Rehash::kNone;
}

void LshIndex::restore(std::span<const uint32_t> codes, std::span<const float> centre) {
  check_restored(codes, centre);
  rehash_ = Rehash::kNone;
  changes_ = {};
  codes_.assign(codes.begin(), codes.end());
  centre_.assign(centre.begin(), centre.end());
  fill_tables(active_);
}

std::vector<uint32_t> LshIndex::next_codes() const {
  MODELET_CHECK(rehash_ == Rehash::kDone, "next_codes() before work() is done");
  std::vector<uint32_t> codes = codes_;
  apply_changes(codes);
  return codes;
}

// codes [rows, tables]: the changed rows get their new codes.
void LshIndex::apply_changes(std::span<uint32_t> codes) const {
  const uint32_t tables = options_.hash.tables;
  for (size_t i = 0; i < changes_.rows.size(); ++i) {
    std::copy_n(&changes_.codes[i * tables], tables, &codes[size_t{changes_.rows[i]} * tables]);
  }
}

void LshIndex::restore_rehash(std::span<const uint32_t> codes, std::span<const float> centre) {
  check_restored(codes, centre);
  const uint32_t tables = options_.hash.tables;
  changes_ = {};
  changes_.centre.assign(centre.begin(), centre.end());
  for (uint32_t row = 0; row < rows_; ++row) {
    const auto next = codes.subspan(size_t{row} * tables, tables);
    if (std::equal(next.begin(), next.end(), &codes_[size_t{row} * tables])) continue;
    changes_.rows.push_back(row);
    changes_.codes.insert(changes_.codes.end(), next.begin(), next.end());
  }
  fill_tables(standby_);
  rehash_ = Rehash::kDone;
}

void LshIndex::check_restored(std::span<const uint32_t> codes, std::span<const float> centre) const {
  const auto refuse = [](const std::string& what) {
    throw FormatError(
        "hash tables of a checkpoint: " + what +
        "; it was damaged or written with other sampling settings: use its own experiment file, or rebuild "
        "the tables from the weights");
  };
  if (codes.size() != codes_.size()) {
    refuse("expected " + std::to_string(rows_) + " x " + std::to_string(options_.hash.tables) +
           " codes, got " + std::to_string(codes.size()));
  }
  const uint32_t buckets = 1u << options_.hash.bits;
  const auto bad_code =
      std::find_if(codes.begin(), codes.end(), [&](uint32_t code) { return code >= buckets; });
  if (bad_code != codes.end()) {
    refuse("code " + std::to_string(*bad_code) + " of row " +
           std::to_string(static_cast<size_t>(bad_code - codes.begin()) / options_.hash.tables) +
           " is outside a table of " + std::to_string(buckets) + " buckets");
  }
  if (centre.size() != centre_.size()) {
    refuse("expected a centre of " + std::to_string(centre_.size()) + " values, got " +
           std::to_string(centre.size()));
  }
  if (!std::all_of(centre.begin(), centre.end(), [](float value) { return std::isfinite(value); })) {
    refuse("the centre has a value that is not finite");
  }
}

std::vector<float> LshIndex::mean_row(const ConstRows& weights) const {
  std::vector<double> sum(weights.cols(), 0.0);
  std::vector<float> mean(weights.cols(), 0.0f);
  if (weights.rows() == 0) return mean;
  for (size_t r = 0; r < weights.rows(); ++r)
    std::transform(sum.begin(), sum.end(), weights.row(r, mean.data()), sum.begin(), std::plus<>());
  for (size_t c = 0; c < weights.cols(); ++c)
    mean[c] = static_cast<float>(sum[c] / static_cast<double>(weights.rows()));
  return mean;
}

// codes [weights.rows, tables]; an empty `centre` subtracts nothing.
void LshIndex::hash_rows(const ConstRows& weights, std::span<const float> centre,
                         std::span<uint32_t> codes) const {
  const uint32_t tables = options_.hash.tables;
  HashMemory scratch;
  std::vector<float> widened(weights.cols()), centred(weights.cols());
  for (size_t r = 0; r < weights.rows(); ++r) {
    std::copy_n(weights.row(r, widened.data()), weights.cols(), centred.begin());
    for (size_t c = 0; c < centre.size(); ++c) centred[c] -= centre[c];
    family_->hash(centred, codes.subspan(r * tables, tables), scratch);
  }
}

double LshIndex::stale_share(std::span<const uint32_t> rows, const ConstRows& weights) const {
  MODELET_CHECK(weights.rows() == rows_ && weights.cols() == options_.hash.dim);
  const uint32_t tables = options_.hash.tables;
  std::vector<float> widened(weights.cols());
  std::vector<uint32_t> codes(tables);
  size_t stale = 0;
  for (const uint32_t row : rows) {
    const float* values = weights.row(row, widened.data());
    hash_rows(ConstMatrix{values, 1, weights.cols(), weights.cols()}, centre_, codes);
    for (uint32_t t = 0; t < tables; ++t) stale += codes[t] != codes_[size_t{row} * tables + t] ? 1 : 0;
  }
  return rows.empty() ? 0 : static_cast<double>(stale) / static_cast<double>(rows.size() * tables);
}

// Builds all tables from codes_, with the changed rows' new codes in place of theirs.
void LshIndex::fill_tables(BucketTables& tables) const {
  const uint32_t count = options_.hash.tables;
  std::vector<uint32_t> column(rows_);
  for (uint32_t t = 0; t < count; ++t) {
    for (size_t row = 0; row < rows_; ++row) column[row] = codes_[row * count + t];
    for (size_t i = 0; i < changes_.rows.size(); ++i)
      column[changes_.rows[i]] = changes_.codes[i * count + t];
    tables.build_table(t, column);
  }
}

size_t LshIndex::memory_bytes() const {
  return family_->memory_bytes() + active_.memory_bytes() + standby_.memory_bytes() +
         (codes_.capacity() + changes_.rows.capacity() + changes_.codes.capacity()) * sizeof(uint32_t) +
         (centre_.capacity() + changes_.centre.capacity() + changes_.weights.capacity()) * sizeof(float);
}

}  // namespace modelet::hashing
