// Scratch<T>: aligned memory that is used again. It grows, never shrinks, and does not keep its contents:
// after reserve() they are unspecified. A value that owns its memory; for one thread at a time.
#pragma once

#include <cstddef>
#include <span>

#include "base/array/aligned.h"

namespace modelet {

template <class T>
class Scratch {
 public:
  // The first `count` elements. Pointers into it are valid until a larger count is asked for.
  std::span<T> reserve(size_t count) {
    if (values_.size() < count) values_.resize(count);
    return std::span(values_).first(count);
  }
  T* data() { return values_.data(); }
  const T* data() const { return values_.data(); }
  size_t memory_bytes() const { return values_.capacity() * sizeof(T); }

 private:
  AlignedVector<T> values_;
};

}  // namespace modelet
