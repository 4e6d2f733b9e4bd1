// Densified one-permutation MinHash (Shrivastava, ICML 2017) of the set of a vector's largest components.
//
// The set consists of the dim / 8 (at least 1) components of largest magnitude, without zeros, ties to the
// lower index. A component is the element 2 * index, or 2 * index + 1 if it is negative. Each element has a
// random bin and a random rank; the value of a bin is its lowest rank; empty bins copy others (densify.h).
// The code of a table mixes the values of max(1, bits / kBitsPerValue) bins of its own down to `bits` bits.
// Cost: one pass over the set, whatever the number of tables.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "hashing/densify.h"
#include "hashing/hash_family.h"

namespace modelet::hashing {
namespace {

constexpr size_t kDimPerElement = 8;   // one of so many components belongs to the set
constexpr uint32_t kBitsPerValue = 4;  // unrelated sets share a MinHash with a chance of about 1/31

class MinHash final : public HashFamily {
 public:
  explicit MinHash(const HashOptions& options)
      : HashFamily(options),
        set_size_(std::max<size_t>(1, options.dim / kDimPerElement)),
        bins_per_table_(std::max(1u, options.bits / kBitsPerValue)),
        bins_(size_t{options.tables} * bins_per_table_),
        elements_(2 * options.dim),
        densify_seed_(Rng(options.seed, {kStreamHash, kStreamDensify}).next()) {
    Rng rng(options.seed, {kStreamHash, kStreamElements});
    for (Element& element : elements_) {
      element.bin = rng.below(static_cast<uint32_t>(bins_));
      element.rank = rng.below(kMaxBinValue);
    }
  }

  void hash(std::span<const float> x, std::span<uint32_t> codes, HashMemory& scratch) const override {
    MODELET_CHECK(x.size() == options().dim && codes.size() == options().tables);
    scratch.bins.assign(bins_, kEmptyBin);
    fill_bins(x, scratch.bins, scratch.magnitudes);
    densify(scratch.bins, densify_seed_);
    const uint32_t* value = scratch.bins.data();
    for (uint32_t& code : codes) {
      uint64_t mixed = 0;
      for (uint32_t j = 0; j < bins_per_table_; ++j) mixed = mix64(mixed ^ *value++);
      code = static_cast<uint32_t>(mixed >> (64 - options().bits));
    }
  }

  size_t memory_bytes() const override { return elements_.capacity() * sizeof(Element); }

 private:
  enum Stream : uint64_t { kStreamElements = 1, kStreamDensify = 2 };

  struct Element {
    uint32_t bin, rank;
  };

  // bins [bins_]: the lowest rank of the set's elements in each bin; bins without an element stay.
  void fill_bins(std::span<const float> x, std::span<uint32_t> bins, std::vector<int32_t>& magnitudes) const {
    magnitudes.resize(x.size());
    for (size_t i = 0; i < x.size(); ++i) magnitudes[i] = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
    const int32_t lowest = set_threshold(magnitudes);
    size_t at_lowest = set_size_ - count_above(magnitudes, lowest);  // places left for ties
    for (size_t i = 0; i < x.size(); ++i) {
      if (magnitudes[i] < lowest || (magnitudes[i] == lowest && at_lowest == 0)) continue;
      if (magnitudes[i] == lowest) --at_lowest;
      const Element& element = elements_[2 * i + (std::signbit(x[i]) ? 1 : 0)];
      bins[element.bin] = std::min(bins[element.bin], element.rank);
    }
  }

  // The magnitude of the set's smallest element: the largest m, at least 1, that set_size_ magnitudes reach.
  // Found bit by bit, because counting vectorises and does not branch on the data, unlike selection
  // algorithms. Magnitudes are the bits of floats without sign, which are ordered like them; so NaN has a
  // place in the order too.
  int32_t set_threshold(std::span<const int32_t> magnitudes) const {
    int32_t threshold = 0;
    for (int32_t bit = 1 << 30; bit != 0; bit >>= 1) {
      const size_t count = count_above(magnitudes, (threshold | bit) - 1);
      if (count >= set_size_) threshold |= bit;
      if (count == set_size_) break;
    }
    return std::max(threshold, 1);
  }

  static size_t count_above(std::span<const int32_t> magnitudes, int32_t floor) {
    int32_t count = 0;
    for (int32_t magnitude : magnitudes) count += magnitude > floor ? 1 : 0;
    return static_cast<size_t>(count);
  }

  size_t set_size_;
  uint32_t bins_per_table_;
  size_t bins_;                    // of all tables
  std::vector<Element> elements_;  // [2 * dim]
  uint64_t densify_seed_;
};

}  // namespace

std::unique_ptr<HashFamily> make_minhash(const HashOptions& options) {
  return std::make_unique<MinHash>(options);
}

}  // namespace modelet::hashing
