// LshIndex: finds, among the rows of a matrix, those that probably have the largest inner product with a query.
//
// Life of the tables. Codes of all rows are kept ([rows, tables] uint32); tables are a pure function of the codes, so a
// checkpoint stores codes and centre only. Maintenance is in two deterministic halves, so that a run can be repeated:
//   begin_rehash(rows, weights)   copies the named (changed) rows aside; returns at once
//   work()                        hashes the copies and builds the standby tables: touches only the copies and the
//                                 standby half, so it may run on any other thread while queries go on
//   finish_rehash()               swaps standby and active (call it when work() has returned)
// query() is const and may run on many threads, but not during finish_rehash() or build().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/matrix.h"
#include "hashing/bucket_tables.h"
#include "hashing/hash_family.h"

namespace modelet::hashing {

struct IndexOptions {
  HashOptions hash;
  uint32_t bucket = 64;  // rows a bucket holds at most; which ones stay is a seeded, order-free choice
  bool centre = true;    // subtract the mean row from rows before hashing; queries are centred by the caller's mean
};

// Scratch of one query; reuse it: after warm-up a query allocates nothing. One per thread.
struct QueryScratch {
  std::vector<uint32_t> codes;      // [tables]
  std::vector<float> centred;       // [dim]
  std::vector<uint16_t> counts;     // [rows], all zero between queries
  std::vector<uint32_t> touched;    // rows with a count
  std::vector<uint32_t> candidates; // result of query()
};

class LshIndex {
 public:
  LshIndex(const IndexOptions& options, size_t rows);

  // Hashes all rows of weights [rows, dim] and builds the active tables. Single-threaded.
  void build(ConstMatrix weights);

  // The rows that collide with `query` [dim] most often (ties: lower row first), at most `limit`, most collisions
  // first. `query_mean` [dim] is subtracted from the query if centring is on (empty: not).
  // The result lives in the scratch until its next use.
  std::span<const uint32_t> query(std::span<const float> query, std::span<const float> query_mean, size_t limit,
                                  QueryScratch& scratch) const;

  void begin_rehash(std::span<const uint32_t> rows, ConstMatrix weights);
  void work();
  void finish_rehash();

  // What a checkpoint keeps. restore() rebuilds the tables; it throws FormatError if shapes or codes do not fit.
  std::span<const uint32_t> codes() const { return codes_; }   // [rows, tables]
  std::span<const float> centre() const { return centre_; }    // [dim]; empty if centring is off
  void restore(std::span<const uint32_t> codes, std::span<const float> centre);

  size_t rows() const { return rows_; }
  size_t memory_bytes() const;
  const IndexOptions& options() const { return options_; }

 private:
  IndexOptions options_;
  size_t rows_;
  std::unique_ptr<HashFamily> family_;
  std::vector<uint32_t> codes_, standby_codes_;
  std::vector<float> centre_;
  BucketTables active_, standby_;
  std::vector<uint32_t> changed_rows_;
  AlignedVector<float> changed_weights_;
};

}  // namespace modelet::hashing
