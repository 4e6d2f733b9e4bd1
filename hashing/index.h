// LshIndex: finds, among the rows of a matrix, those that probably have the largest inner product with a
// query.
//
// Life of the tables. The codes of all rows are kept ([rows, tables] uint32). Tables are a pure function of
// the codes, so a checkpoint stores only codes and centre. Maintenance has two deterministic halves, so that
// a run can be repeated:
//   begin_rehash(rows, weights)   copies the named (changed) rows aside; returns at once
//   work()                        hashes the copies and builds the standby tables; it writes only what
//                                 queries do not read, so it may run on another thread while they go on
//   finish_rehash()               swaps standby and active (call it when work() has returned)
// The result is that of a full build from the same codes. query(), query_codes(), codes() and centre() are
// const: many threads may call them, also during work(), but not during finish_rehash(), build() or
// restore(). codes() does not include a re-hash that has begun until finish_rehash(); next_codes() has it for
// a checkpoint.
//
// Centring. The mean row is subtracted from a row before it is hashed, because vectors that share a large
// offset would all hash alike. A new centre changes all codes, so it moves only when all rows are hashed: in
// build(), and in a re-hash that names every row. The ranking of rows by inner product with a query does not
// depend on the centre.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/matrix.h"
#include "hashing/bucket_tables.h"
#include "hashing/hash_family.h"

namespace modelet::hashing {

struct IndexOptions {
  HashOptions hash;
  uint32_t bucket = 64;  // rows a bucket holds at most; which ones stay is a seeded, order-free choice
  bool centre = true;    // subtract the mean row before hashing; the caller centres queries by their mean
};

// Scratch of one query; reuse it, also with other indexes. Memory for a query is allocated by its first use
// or, for all queries of an index, by LshIndex::reserve(). One per thread.
struct QueryMemory {
  HashMemory hash;
  std::vector<uint32_t> codes;    // [tables]
  std::vector<float> centred;     // [dim]
  std::vector<uint16_t> counts;   // [rows] or longer: collisions of each row; all zero between queries
  std::vector<uint32_t> touched;  // rows with a count
  std::vector<uint32_t> reached;  // [tables + 1]: how many rows have a count of at least 2, 3, ...
  std::vector<std::span<const uint32_t>> buckets;  // [tables] of the query
  std::vector<uint32_t> ties;
  std::vector<uint32_t> candidates;  // result of query()
};

class LshIndex {
 public:
  // The tables are empty, and queries find nothing, until build() or restore().
  LshIndex(const IndexOptions& options, size_t rows);

  // Hashes all rows of weights [rows, dim] and builds the active tables. Single-threaded. Drops a re-hash
  // that has begun.
  void build(ConstRows weights);

  // The rows that collide with `query` [dim] most often, at most `limit` of them. Of rows with equally many
  // collisions, lower ones are taken first. The order of the result has no meaning: callers rank it exactly.
  // `query_mean` [dim] is subtracted from the query if centring is on (empty: nothing is subtracted). The
  // result lives in the scratch until its next use.
  std::span<const uint32_t> query(std::span<const float> query, std::span<const float> query_mean,
                                  size_t limit, QueryMemory& scratch) const;

  // query() in two halves, because indexes with equal HashOptions can share the codes of a query. The codes
  // [tables] are in scratch.codes.
  std::span<const uint32_t> hash_query(std::span<const float> query, std::span<const float> query_mean,
                                       QueryMemory& scratch) const;
  std::span<const uint32_t> query_codes(std::span<const uint32_t> codes, size_t limit,
                                        QueryMemory& scratch) const;

  // After this, no query of this index allocates memory in this scratch.
  void reserve(QueryMemory& scratch) const;

  // `rows` ascend, without repetition; `weights` [rows(), dim] is read only during the call.
  void begin_rehash(std::span<const uint32_t> rows, ConstRows weights);
  void work();
  void finish_rehash();

  // The part that a checkpoint keeps. restore() rebuilds the tables; it throws FormatError if shapes or codes
  // do not fit, and then changes nothing. It drops a re-hash that has begun.
  std::span<const uint32_t> codes() const { return codes_; }  // [rows, tables]
  std::span<const float> centre() const { return centre_; }   // [dim]; empty if centring is off
  void restore(std::span<const uint32_t> codes, std::span<const float> centre);

  // A re-hash whose work() has returned: the codes and the centre that finish_rehash() will install, which a
  // checkpoint keeps too. restore_rehash() brings that state back after restore(), with the same checks.
  bool rehash_is_done() const { return rehash_ == Rehash::kDone; }
  std::vector<uint32_t> next_codes() const;
  std::span<const float> next_centre() const { return changes_.centre; }
  void restore_rehash(std::span<const uint32_t> codes, std::span<const float> centre);

  // Share of the codes of `rows` that no longer match their weights [rows(), dim], under the present centre;
  // 0 for no rows. It hashes all of them, so pass a sample.
  double stale_share(std::span<const uint32_t> rows, const ConstRows& weights) const;

  size_t rows() const { return rows_; }
  size_t memory_bytes() const;
  const IndexOptions& options() const { return options_; }

 private:
  enum class Rehash { kNone, kBegun, kDone };

  // The rows of a re-hash, from begin_rehash() to finish_rehash().
  struct Changes {
    std::vector<uint32_t> rows;
    AlignedVector<float> weights;  // [rows.size(), dim], until they are hashed
    std::vector<uint32_t> codes;   // [rows.size(), tables]
    std::vector<float> centre;
  };

  std::vector<float> mean_row(const ConstRows& weights) const;
  void hash_rows(const ConstRows& weights, std::span<const float> centre, std::span<uint32_t> codes) const;
  void check_restored(std::span<const uint32_t> codes, std::span<const float> centre) const;
  void apply_changes(std::span<uint32_t> codes) const;
  void fill_tables(BucketTables& tables) const;
  void keep_best(size_t limit, QueryMemory& scratch) const;

  IndexOptions options_;
  size_t rows_;
  std::unique_ptr<HashFamily> family_;
  std::vector<uint32_t> codes_;  // [rows, tables]
  std::vector<float> centre_;
  BucketTables active_, standby_;
  Changes changes_;
  Rehash rehash_ = Rehash::kNone;
};

}  // namespace modelet::hashing
