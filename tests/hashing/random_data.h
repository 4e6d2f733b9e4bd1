// Seeded data for the tests of the hashing folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/array/matrix.h"
#include "base/rng.h"

namespace modelet::hashing {

inline std::vector<float> normal_vector(size_t size, Rng& rng) {
  std::vector<float> values(size);
  for (float& value : values) value = rng.normal();
  return values;
}

struct Rows {
  size_t dim;
  std::vector<float> values;  // [rows, dim]

  size_t count() const { return values.size() / dim; }
  std::span<float> row(size_t r) { return {&values[r * dim], dim}; }
  std::span<const float> row(size_t r) const { return {&values[r * dim], dim}; }
  ConstMatrix matrix() const { return {values.data(), count(), dim, dim}; }
};

inline Rows normal_rows(size_t count, size_t dim, uint64_t seed) {
  Rng rng(seed);
  return {dim, normal_vector(count * dim, rng)};
}

}  // namespace modelet::hashing
