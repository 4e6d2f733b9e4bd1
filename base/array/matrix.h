// Row-major views of matrices. They own nothing. `stride` is the distance between rows, in elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/array/bf16.h"
#include "base/array/scratch.h"

namespace modelet {

struct ConstMatrix {
  const float* data = nullptr;
  size_t rows = 0, cols = 0, stride = 0;

  const float* row(size_t r) const { return data + r * stride; }
  // Columns, or rows, [first, first + count).
  ConstMatrix columns(size_t first, size_t count) const { return {data + first, rows, count, stride}; }
  ConstMatrix row_range(size_t first, size_t count) const {
    return {data + first * stride, count, cols, stride};
  }
};

struct Matrix {
  float* data = nullptr;
  size_t rows = 0, cols = 0, stride = 0;

  float* row(size_t r) const { return data + r * stride; }
  // Columns, or rows, [first, first + count).
  Matrix columns(size_t first, size_t count) const { return {data + first, rows, count, stride}; }
  Matrix row_range(size_t first, size_t count) const { return {data + first * stride, count, cols, stride}; }
  operator ConstMatrix() const { return {data, rows, cols, stride}; }  // NOLINT: a view is its const view
};

// Some rows of a matrix, at least one, in ascending order. Returns where the first one lies, and the distance
// between them: neighbours stay where they are, others are copied to `scratch` [rows.size(), cols].
template <class T>
std::pair<const T*, size_t> gather_rows(const T* data, size_t stride, size_t cols,
                                        std::span<const uint32_t> rows, T* scratch) {
  if (rows.back() - rows.front() + 1 == rows.size()) return {data + rows.front() * stride, stride};
  for (size_t i = 0; i < rows.size(); ++i) std::copy_n(data + rows[i] * stride, cols, scratch + i * cols);
  return {scratch, cols};
}

// Rows stored as fp32 or as bf16, for code that reads them one by one.
class ConstRows {
 public:
  ConstRows(ConstMatrix matrix)  // NOLINT: a matrix of floats is one
      : floats_(matrix.data), rows_(matrix.rows), cols_(matrix.cols), stride_(matrix.stride) {}
  ConstRows(Matrix matrix) : ConstRows(ConstMatrix(matrix)) {}  // NOLINT
  ConstRows(const Bf16* data, size_t rows, size_t cols, size_t stride)
      : halves_(data), rows_(rows), cols_(cols), stride_(stride) {}

  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }

  // Row r [cols] as floats. An fp32 row is returned in place, a bf16 row is widened into `scratch` [cols].
  const float* row(size_t r, float* scratch) const {
    if (halves_ == nullptr) return floats_ + r * stride_;
    const Bf16* from = halves_ + r * stride_;
    std::transform(from, from + cols_, scratch, to_float);
    return scratch;
  }
  // The same for at least one row, in ascending order; scratch [rows.size(), cols]. fp32 rows are returned in
  // place if they are neighbours.
  ConstMatrix block(std::span<const uint32_t> rows, float* scratch) const {
    if (halves_ == nullptr) {
      const auto [data, stride] = gather_rows(floats_, stride_, cols_, rows, scratch);
      return {data, rows.size(), cols_, stride};
    }
    for (size_t i = 0; i < rows.size(); ++i) row(rows[i], scratch + i * cols_);
    return {scratch, rows.size(), cols_, cols_};
  }

 private:
  const float* floats_ = nullptr;
  const Bf16* halves_ = nullptr;
  size_t rows_, cols_, stride_;
};

// Scratch memory as a matrix, whose shape may change from step to step.
class Buffer {
 public:
  Matrix resize(size_t rows, size_t cols) {
    matrix_ = {values_.reserve(rows * cols).data(), rows, cols, cols};
    return matrix_;
  }
  Matrix matrix() const { return matrix_; }
  size_t memory_bytes() const { return values_.memory_bytes(); }

 private:
  Scratch<float> values_;
  Matrix matrix_;
};

}  // namespace modelet
