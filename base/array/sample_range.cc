#include "base/array/sample_range.h"

#include <algorithm>

namespace modelet {

void split_batch(size_t samples, size_t count, std::vector<SampleRange>& ranges) {
  ranges.clear();
  for (size_t begin = 0; begin < samples; begin = ranges.back().end) {
    const bool last = ranges.size() + 1 >= count;
    const size_t size = last ? samples - begin : padded((samples - begin + 1) / 2);
    ranges.push_back({begin, std::min(samples, begin + size)});
  }
}

}  // namespace modelet
