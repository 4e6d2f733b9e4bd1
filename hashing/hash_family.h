// Locality-sensitive hash families over dense float vectors: close vectors fall into the same bucket more
// often. The families differ in what close means:
//
//   DWTA     order statistics: densified winner-take-all (Chen, Shrivastava: "Densified Winner Take All
//            Hashing", UAI 2018)
//   SimHash  angle: signs of random projections (Charikar, STOC 2002), here the orthogonal ones of a
//            randomised Hadamard transform
//   MinHash  overlap: densified one-permutation MinHash (Shrivastava, ICML 2017) over the set of the largest
//            components
//
// A family draws all its randomness from its seed at construction and is immutable afterwards: any thread may
// call it, with a scratch of its own. Equal vectors have equal codes in every table. A vector of zeros, and
// any vector with NaN or infinities, has valid codes too; which vectors it collides with is not specified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "base/experiment/experiment.h"

namespace modelet::hashing {

inline constexpr uint32_t kMaxTables = 1024;
inline constexpr uint32_t kMaxBits = 24;

struct HashOptions {
  HashFamilyKind kind = HashFamilyKind::kDwta;
  size_t dim = 0;        // width of the vectors, at least 1
  uint32_t tables = 16;  // L, in [1, kMaxTables]
  uint32_t bits = 9;     // buckets of a table = 2^bits, in [1, kMaxBits]
  uint64_t seed = 1;
};

// Working memory of hash(); it keeps nothing between calls. Reuse it: nothing is allocated after the first
// call. One per thread.
struct HashMemory {
  AlignedVector<float> values;
  std::vector<uint32_t> bins;
  std::vector<int32_t> magnitudes;
};

class HashFamily {
 public:
  virtual ~HashFamily() = default;
  // x [dim] -> codes [tables], each in [0, 2^bits).
  virtual void hash(std::span<const float> x, std::span<uint32_t> codes, HashMemory& scratch) const = 0;

  const HashOptions& options() const { return options_; }
  virtual size_t memory_bytes() const = 0;

 protected:
  explicit HashFamily(const HashOptions& options) : options_(options) {}

 private:
  HashOptions options_;
};

// Each family is a file of its own; hash_family.cc has the table of them.
std::unique_ptr<HashFamily> make_hash_family(const HashOptions& options);

}  // namespace modelet::hashing
