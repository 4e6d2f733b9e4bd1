#include "hashing/bucket_tables.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace modelet::hashing {

BucketTables::BucketTables(const BucketOptions& options, size_t rows)
    : options_(options),
      rows_(rows),
      buckets_(size_t{1} << options.bits),
      stride_(std::min(rows, buckets_ * options.capacity)),
      offsets_(options.tables * (buckets_ + 1), 0),
      entries_(options.tables * stride_) {
  MODELET_CHECK(options.capacity >= 1);
  MODELET_CHECK(rows <= std::numeric_limits<uint32_t>::max());
}

void BucketTables::build_table(uint32_t table, std::span<const uint32_t> codes) {
  MODELET_CHECK(table < options_.tables && codes.size() == rows_);
  std::vector<uint32_t> ends(buckets_ + 1, 0);
  for (uint32_t code : codes) ++ends[code + 1];
  for (size_t b = 0; b < buckets_; ++b) ends[b + 1] += ends[b];
  // ends[b] is where bucket b starts now; placing its rows moves it to the bucket's end.
  std::vector<uint32_t> sorted(rows_);
  for (size_t row = 0; row < rows_; ++row) sorted[ends[codes[row]]++] = static_cast<uint32_t>(row);

  const uint64_t table_seed = Rng(options_.seed, {kStreamTables, table}).next();
  std::vector<uint64_t> keys;
  uint32_t* offset = &offsets_[table * (buckets_ + 1)];
  uint32_t* entry = entries_.data() + table * stride_;
  size_t begin = 0, used = 0;
  for (size_t b = 0; b < buckets_; ++b) {
    offset[b] = static_cast<uint32_t>(used);
    used += keep({sorted.data() + begin, ends[b] - begin}, table_seed, keys, entry + used);
    begin = ends[b];
  }
  offset[buckets_] = static_cast<uint32_t>(used);
}

// Copies the rows that stay, still ascending, to `out`; returns how many.
size_t BucketTables::keep(std::span<const uint32_t> sorted_rows, uint64_t table_seed,
                          std::vector<uint64_t>& keys, uint32_t* out) const {
  if (sorted_rows.size() <= options_.capacity) {
    std::copy(sorted_rows.begin(), sorted_rows.end(), out);
    return sorted_rows.size();
  }
  // Priorities are distinct, because mix64 is a bijection.
  keys.clear();
  for (uint32_t row : sorted_rows) keys.push_back(mix64(table_seed ^ row));
  std::nth_element(keys.begin(), keys.begin() + options_.capacity, keys.end());
  const uint64_t first_dropped = keys[options_.capacity];
  uint32_t* const start = out;
  for (uint32_t row : sorted_rows) {
    if (mix64(table_seed ^ row) < first_dropped) *out++ = row;
  }
  return static_cast<size_t>(out - start);
}

size_t BucketTables::memory_bytes() const {
  return (offsets_.capacity() + entries_.capacity()) * sizeof(uint32_t);
}

}  // namespace modelet::hashing
