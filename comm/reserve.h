// Scratch memory that is used again. Internal to comm/.
#pragma once

#include <cstddef>
#include <span>

#include "base/aligned.h"

namespace modelet::comm {

// `count` elements at the beginning of `buffer`, which grows and never shrinks. Their values are unspecified.
template <class T>
std::span<T> reserve(AlignedVector<T>& buffer, size_t count) {
  if (buffer.size() < count) buffer.resize(count);
  return std::span(buffer).first(count);
}

}  // namespace modelet::comm
