// Densified winner-take-all hashing (Chen, Shrivastava, UAI 2018).
//
// A bin holds 8 components of the vector, drawn by random permutations; its value is the position of the
// largest one (3 bits; the first wins a tie). The code of a table consists of the values of ceil(bits / 3)
// bins of its own; the last bin holds 2 or 4 components if `bits` is no multiple of 3. A bin whose components
// are all zero (a sparse vector, after ReLU) is empty and copies another bin (densify.h). Vectors narrower
// than a bin repeat their components in it: such codes use fewer buckets, and with dim = 1 there is no order
// and every code is 0.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "hashing/densify.h"
#include "hashing/hash_family.h"

namespace modelet::hashing {
namespace {

constexpr uint32_t kSlots = 8;    // components of a bin
constexpr uint32_t kBinBits = 3;  // log2(kSlots)
constexpr size_t kBinsTogether =
    16;  // bins compared together; a fixed count, so that compilers vectorise the loop

// Deals components in random order, without repetition while the permutation lasts.
class Dealer {
 public:
  Dealer(size_t dim, Rng rng) : order_(dim), next_(dim), rng_(rng) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  // Writes `count` components to out[0], out[stride], ...: distinct ones if there are that many.
  void deal(size_t count, uint32_t* out, size_t stride) {
    if (next_ + count > order_.size()) shuffle();
    for (size_t i = 0; i < count; ++i) out[i * stride] = order_[(next_ + i) % order_.size()];
    next_ += count;
  }

 private:
  void shuffle() {
    for (size_t i = order_.size(); i > 1; --i)
      std::swap(order_[i - 1], order_[rng_.below(static_cast<uint32_t>(i))]);
    next_ = 0;
  }

  std::vector<uint32_t> order_;
  size_t next_;
  Rng rng_;
};

class Dwta final : public HashFamily {
 public:
  explicit Dwta(const HashOptions& options)
      : HashFamily(options),
        bins_per_table_((options.bits + kBinBits - 1) / kBinBits),
        bins_(size_t{options.tables} * bins_per_table_),
        stride_((bins_ + kBinsTogether - 1) / kBinsTogether * kBinsTogether),
        slots_(kSlots * stride_, 0),
        densify_seed_(Rng(options.seed, {kStreamHash, kStreamDensify}).next()) {
    Dealer dealer(options.dim, Rng(options.seed, {kStreamHash, kStreamDeal}));
    for (size_t b = 0; b < bins_; ++b) {
      const size_t width = size_t{1} << value_bits(b % bins_per_table_);
      dealer.deal(width, &slots_[b], stride_);
      // A narrow bin repeats its first component, which then never wins at a later position.
      for (size_t k = width; k < kSlots; ++k) slots_[k * stride_ + b] = slots_[b];
    }
  }

  void hash(std::span<const float> x, std::span<uint32_t> codes, HashMemory& scratch) const override {
    MODELET_CHECK(x.size() == options().dim && codes.size() == options().tables);
    scratch.values.resize(slots_.size());
    for (size_t i = 0; i < slots_.size(); ++i) scratch.values[i] = x[slots_[i]];
    scratch.bins.resize(stride_);
    find_winners(scratch.values.data(), scratch.bins.data());
    const std::span<uint32_t> winners(scratch.bins.data(), bins_);
    if (mark_empty(scratch.values.data(), winners)) densify(winners, densify_seed_);
    compose(winners, codes);
  }

  size_t memory_bytes() const override { return slots_.capacity() * sizeof(slots_[0]); }

 private:
  enum Stream : uint64_t { kStreamDeal = 1, kStreamDensify = 2 };

  // Bits that bin `j` of a table adds to the code.
  uint32_t value_bits(size_t j) const {
    return std::min(kBinBits, options().bits - static_cast<uint32_t>(j) * kBinBits);
  }

  // values [kSlots, stride] -> winners [stride]: the slot of the largest value of each bin.
  void find_winners(const float* values, uint32_t* winners) const {
    for (size_t first = 0; first < stride_; first += kBinsTogether) {
      float best[kBinsTogether];
      uint32_t winner[kBinsTogether] = {};
      std::copy_n(values + first, kBinsTogether, best);
      for (uint32_t k = 1; k < kSlots; ++k) {
        const float* row = values + k * stride_ + first;
        for (size_t i = 0; i < kBinsTogether; ++i) {
          winner[i] = row[i] > best[i] ? k : winner[i];
          best[i] = row[i] > best[i] ? row[i] : best[i];
        }
      }
      std::copy_n(winner, kBinsTogether, winners + first);
    }
  }

  // Marks bins whose values are all zero; true if there are any.
  bool mark_empty(const float* values, std::span<uint32_t> winners) const {
    bool any = false;
    for (size_t b = 0; b < bins_; ++b) {
      if (values[winners[b] * stride_ + b] != 0) continue;  // the usual case, decided by one look
      bool empty = true;
      for (size_t k = 0; k < kSlots; ++k) empty &= values[k * stride_ + b] == 0;
      if (empty) winners[b] = kEmptyBin;
      any |= empty;
    }
    return any;
  }

  void compose(std::span<const uint32_t> winners, std::span<uint32_t> codes) const {
    const uint32_t* winner = winners.data();
    for (uint32_t& code : codes) {
      code = 0;
      for (uint32_t j = 0; j < bins_per_table_; ++j) {
        const uint32_t bits = value_bits(j);
        code = code << bits | (*winner++ & ((1u << bits) - 1));  // the mask: a copied value may be wider
      }
    }
  }

  uint32_t bins_per_table_;
  size_t bins_;                  // of all tables
  size_t stride_;                // bins_ rounded up to kBinsTogether; the added bins are computed and ignored
  std::vector<uint32_t> slots_;  // [kSlots, stride]: component in each slot of each bin
  uint64_t densify_seed_;
};

}  // namespace

std::unique_ptr<HashFamily> make_dwta(const HashOptions& options) { return std::make_unique<Dwta>(options); }

}  // namespace modelet::hashing
