// IdSorter: sorts lists of ids, the most expensive part of reading text if it is done by comparisons that the
// processor must guess. One thread uses a sorter; it keeps scratch.
#pragma once

#include <hwy/contrib/sort/vqsort.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace modelet::shard {

class IdSorter {
 public:
  void operator()(std::vector<uint32_t>& ids) {
    constexpr size_t kWorthBuckets = 32;   // below, setting them up takes longer
    constexpr size_t kWorthVectors = 256;  // below, asking the system for random numbers, as vqsort does
    if (ids.size() < kWorthBuckets)
      std::sort(ids.begin(), ids.end());
    else if (ids.size() < kWorthVectors)
      sort_in_buckets(ids);
    else
      vectors_(ids.data(), ids.size(), hwy::SortAscending());
  }

 private:
  // By the highest bits first. Ids are about as dense everywhere (those of hashed features are), so hardly
  // any is left to be moved; if not, it takes longer, and lists are short.
  void sort_in_buckets(std::vector<uint32_t>& ids) {
    constexpr int kBits = 8;
    uint32_t all = 0;
    for (const uint32_t id : ids) all |= id;
    const int shift = std::max(0, static_cast<int>(std::bit_width(all)) - kBits);
    std::array<uint16_t, 1 << kBits> place{};  // first how many ids a bucket has
    for (const uint32_t id : ids) ++place[id >> shift];
    uint16_t begin = 0;
    for (uint16_t& of : place) {
      const uint16_t count = of;
      of = begin;
      begin = static_cast<uint16_t>(begin + count);
    }
    sorted_.resize(ids.size());
    for (const uint32_t id : ids) sorted_[place[id >> shift]++] = id;
    for (size_t i = 1; i < sorted_.size(); ++i) {
      const uint32_t id = sorted_[i];
      size_t to = i;
      for (; to > 0 && sorted_[to - 1] > id; --to) sorted_[to] = sorted_[to - 1];
      sorted_[to] = id;
    }
    ids.swap(sorted_);
  }

  hwy::Sorter vectors_;
  std::vector<uint32_t> sorted_;
};

}  // namespace modelet::shard
