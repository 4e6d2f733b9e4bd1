// BucketTables: for each hash table, the row ids in each bucket, as flat arrays (compressed sparse rows).
//
// The contents are a pure function of the codes and the options: rows of a bucket ascend, and which rows an
// over-full bucket keeps depends only on (seed, table, row), not on the order or history of building. Owns
// its arrays; no heap block per bucket. Many threads may read, except during build_table().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace modelet::hashing {

struct BucketOptions {
  uint32_t tables = 0;
  uint32_t bits = 0;  // buckets of a table = 2^bits
  // Rows a bucket holds at most; an over-full one keeps those with the lowest seeded priority.
  uint32_t capacity = 0;
  uint64_t seed = 0;
};

class BucketTables {
 public:
  // Empty tables for row ids in [0, rows), rows < 2^32.
  BucketTables(const BucketOptions& options, size_t rows);

  // Replaces one table. codes [rows]: the bucket of each row in this table. O(rows + 2^bits), by counting
  // sort.
  void build_table(uint32_t table, std::span<const uint32_t> codes);

  std::span<const uint32_t> bucket(uint32_t table, uint32_t code) const {
    const uint32_t* offset = &offsets_[table * (buckets_ + 1) + code];
    return {entries_.data() + table * stride_ + offset[0], offset[1] - offset[0]};
  }

  // Prefetches what bucket() reads first, for callers that look up many buckets at once.
  void prefetch(uint32_t table, uint32_t code) const {
    __builtin_prefetch(&offsets_[table * (buckets_ + 1) + code]);
  }

  size_t memory_bytes() const;

 private:
  size_t keep(std::span<const uint32_t> sorted_rows, uint64_t table_seed, std::vector<uint64_t>& keys,
              uint32_t* out) const;

  BucketOptions options_;
  size_t rows_, buckets_;
  size_t stride_;                  // entries a table can hold
  std::vector<uint32_t> offsets_;  // [tables, buckets + 1], from the start of the table's entries
  std::vector<uint32_t> entries_;  // [tables, stride]
};

}  // namespace modelet::hashing
