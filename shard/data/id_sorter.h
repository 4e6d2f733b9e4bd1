// IdSorter: sorts lists of ids, the most expensive part of reading text unless vectors do it. One thread uses
// a sorter; it keeps scratch.
#pragma once

#include <hwy/contrib/sort/vqsort.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace modelet::shard {

class IdSorter {
 public:
  void operator()(std::vector<uint32_t>& ids) const {
    constexpr size_t kWorthVectors = 32;  // below, setting them up takes longer
    if (ids.size() < kWorthVectors)
      std::sort(ids.begin(), ids.end());
    else
      vectors_(ids.data(), ids.size(), hwy::SortAscending());
  }

 private:
  hwy::Sorter vectors_;
};

}  // namespace modelet::shard
