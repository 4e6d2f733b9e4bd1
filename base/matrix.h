// Row-major views of float matrices. They own nothing; `stride` is the distance between rows, in elements.
#pragma once

#include <cstddef>

namespace modelet {

struct ConstMatrix {
  const float* data = nullptr;
  size_t rows = 0, cols = 0, stride = 0;

  const float* row(size_t r) const { return data + r * stride; }
};

struct Matrix {
  float* data = nullptr;
  size_t rows = 0, cols = 0, stride = 0;

  float* row(size_t r) const { return data + r * stride; }
  // Columns [first, first + count).
  Matrix columns(size_t first, size_t count) const { return {data + first, rows, count, stride}; }
  operator ConstMatrix() const {
    return {data, rows, cols, stride};
  }  // NOLINT: a view converts to its const view
};

}  // namespace modelet
