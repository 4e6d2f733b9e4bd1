// Loops over rows that lie far apart in memory. Rows are requested some time before they are used, because
// waiting for them would take most of the time (docs/decisions/0002-fetch-rows-ahead.md).
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/array/aligned.h"

namespace modelet {

constexpr size_t cache_lines(size_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine; }

// Requests one line into the second-level cache. A core has few slots for lines on their way to the
// first-level cache (docs/decisions/0018-fetch-into-the-second-cache.md).
[[gnu::always_inline]] inline void prefetch_line(const void* of) { __builtin_prefetch(of, 0, 2); }

[[gnu::always_inline]] inline void prefetch_bytes(const void* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kCacheLine) prefetch_line(static_cast<const char*>(from) + at);
  // GCC regards a function that only prefetches as one without effect, and drops its calls.
  asm volatile("");
}

// How many rows ahead to request if a row has `lines` cache lines: enough to keep the memory busy, but only a
// small part of the second-level cache.
constexpr size_t rows_ahead(size_t lines) {
  constexpr size_t kLinesUnderWay = 256;
  return std::clamp<size_t>(kLinesUnderWay / lines, 4, 64);
}

// Calls fetch(i), and `ahead` iterations later use(i), for every i in [begin, end).
template <class Fetch, class Use>
void for_each_fetched(size_t begin, size_t end, size_t ahead, const Fetch& fetch, const Use& use) {
  for (size_t i = begin; i < std::min(end, begin + ahead); ++i) fetch(i);
  for (size_t i = begin; i < end; ++i) {
    if (i + ahead < end) fetch(i + ahead);
    use(i);
  }
}

}  // namespace modelet
