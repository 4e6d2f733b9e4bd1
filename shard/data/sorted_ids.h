// SortedIds: ids in ascending order, each as often as it was put in: what a window holds that moves along a
// text. There are always equally many places, and a step walks all of them without a decision that depends on
// an id: for a window's dozen this is faster than to search, and much faster than to sort anew. One thread
// uses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace modelet::shard {

class SortedIds {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;  // in an empty place; no id

  explicit SortedIds(size_t places) : ids_(places + 1, kNone) {}

  void clear() { std::fill(ids_.begin(), ids_.end(), kNone); }
  // An occurrence of `leaving` goes, which must be there, and `entering` comes. kNone: nothing goes, and a
  // place must be empty; nothing comes.
  void replace(uint32_t leaving, uint32_t entering) {
    uint32_t* const ids = ids_.data();
    for (size_t i = 0, places = ids_.size() - 1; i < places; ++i) {
      const uint32_t here = ids[i + (ids[i] >= leaving ? 1 : 0)];
      // The smaller one stays. In arithmetic: of std::min and std::max, GCC makes a branch.
      const uint32_t swap = (here ^ entering) & -static_cast<uint32_t>(entering < here);
      ids[i] = here ^ swap;
      entering ^= swap;
    }
  }

  // Of all places, the empty ones last, and behind them once more kNone: [places + 1].
  std::span<const uint32_t> all() const { return ids_; }

 private:
  std::vector<uint32_t> ids_;  // [places + 1]
};

}  // namespace modelet::shard
