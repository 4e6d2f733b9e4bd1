// Locality-sensitive hash families over dense float vectors: close vectors fall into the same bucket more often.
//
//   DWTA     densified winner-take-all (Chen, Shrivastava: "Densified Winner Take All Hashing", UAI 2018): order statistics
//   SimHash  signs of sparse random projections (Charikar, STOC 2002): angle
//   MinHash  densified one-permutation MinHash (Shrivastava, ICML 2017) over the set of the largest components: overlap
//
// A family draws all its randomness from its seed at construction and is immutable afterwards: any thread may call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/experiment.h"

namespace modelet::hashing {

struct HashOptions {
  HashFamilyKind kind = HashFamilyKind::kDwta;
  size_t dim = 0;         // width of the vectors
  uint32_t tables = 16;   // L
  uint32_t bits = 9;      // buckets of a table = 2^bits, 1 <= bits <= 24
  uint64_t seed = 1;
};

class HashFamily {
 public:
  virtual ~HashFamily() = default;
  // x [dim] -> codes [tables], each in [0, 2^bits).
  virtual void hash(std::span<const float> x, std::span<uint32_t> codes) const = 0;

  const HashOptions& options() const { return options_; }

 protected:
  explicit HashFamily(const HashOptions& options) : options_(options) {}

 private:
  HashOptions options_;
};

// Registered families: hashing/dwta.cc, simhash.cc, minhash.cc. Adding one: one file and one line in hash_family.cc.
std::unique_ptr<HashFamily> make_hash_family(const HashOptions& options);

}  // namespace modelet::hashing
