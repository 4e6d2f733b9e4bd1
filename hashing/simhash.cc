// SimHash (Charikar, STOC 2002): each bit of a code is the sign of a projection of the vector on a random
// direction.
//
// The directions are the rows of H D_b H D_0, where H is a Hadamard matrix and each D a diagonal of random
// signs (Ailon, Chazelle, STOC 2006; used for hashing by Andoni et al., "Practical and Optimal LSH for
// Angular Distance", NIPS 2015). `width` directions cost width x log2(width) additions instead of width x
// dim, and those of one block b are orthogonal, which estimates angles better than independent ones (Ji et
// al., "Super-Bit LSH", NIPS 2012). H D_0 spreads the vector, padded with zeros to `width`, evenly; all
// blocks share it. Sums are in a fixed order.
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/rng.h"
#include "hashing/hash_family.h"

namespace modelet::hashing {
namespace {

constexpr size_t kButterflies =
    16;  // butterflies done together; a fixed count, so that compilers vectorise the loop
constexpr size_t kMinWidth = 64;  // narrower vectors are padded, so that few blocks give all bits

// Hadamard transform of data [width] (width a power of two >= 2 * kButterflies), up to the order of the
// results, which does not matter here: all stages have the same shape (Pease, JACM 1968). Uses spare [width];
// returns where the result lies.
float* hadamard(float* data, float* spare, size_t width) {
  const size_t half = width / 2;
  for (size_t stage = 1; stage < width; stage *= 2) {
    for (size_t first = 0; first < half; first += kButterflies) {
      const float *a = data + first, *b = a + half;
      float* out = spare + 2 * first;
      for (size_t i = 0; i < kButterflies; ++i) {
        const float sum = a[i] + b[i], difference = a[i] - b[i];
        out[2 * i] = sum;
        out[2 * i + 1] = difference;
      }
    }
    std::swap(data, spare);
  }
  return data;
}

class SimHash final : public HashFamily {
 public:
  explicit SimHash(const HashOptions& options)
      : HashFamily(options), width_(std::max(kMinWidth, std::bit_ceil(options.dim))) {
    const size_t projections = size_t{options.tables} * options.bits;
    blocks_ = (projections + width_ - 1) / width_;
    signs_.resize((1 + blocks_) * width_);
    Rng rng(options.seed, {kStreamHash});
    for (float& sign : signs_) sign = rng.below(2) == 0 ? 1.0f : -1.0f;
  }

  void hash(std::span<const float> x, std::span<uint32_t> codes, HashMemory& scratch) const override {
    MODELET_CHECK(x.size() == options().dim && codes.size() == options().tables);
    scratch.values.resize(4 * width_);
    float* work = scratch.values.data();
    float* spare = work + width_;
    float* projected = work + 2 * width_;
    float* projected_spare = work + 3 * width_;

    for (size_t i = 0; i < x.size(); ++i) work[i] = x[i] * signs_[i];
    std::fill(work + x.size(), work + width_, 0.0f);
    const float* spread = hadamard(work, spare, width_);

    const float *next = nullptr, *end = nullptr;
    size_t block = 0;
    for (uint32_t& code : codes) {
      code = 0;
      for (uint32_t bit = 0; bit < options().bits; ++bit) {
        if (next == end) {
          const float* sign = &signs_[++block * width_];
          for (size_t i = 0; i < width_; ++i) projected[i] = spread[i] * sign[i];
          next = hadamard(projected, projected_spare, width_);
          end = next + width_;
        }
        code = code << 1 | (*next++ > 0 ? 1u : 0u);
      }
    }
  }

  size_t memory_bytes() const override { return signs_.capacity() * sizeof(float); }

 private:
  size_t width_;                // dim padded to a power of two
  size_t blocks_;               // of `width_` projections each
  AlignedVector<float> signs_;  // [1 + blocks, width]: D_0, then D_b of each block
};

}  // namespace

std::unique_ptr<HashFamily> make_simhash(const HashOptions& options) {
  return std::make_unique<SimHash>(options);
}

}  // namespace modelet::hashing
