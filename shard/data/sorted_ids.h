// SortedIds: a few ids in ascending order, each as often as it was inserted: what a window holds that moves
// along a text. Every step walks all of them without a decision that depends on an id: for a window's dozen
// this is faster than to search, and much faster than to sort anew. One thread uses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace modelet::shard {

class SortedIds {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  explicit SortedIds(size_t most) : ids_(most + 1) {}

  void clear() { size_ = 0; }
  void insert(uint32_t id) {
    for (size_t i = 0; i < size_; ++i) {
      const uint32_t here = ids_[i];
      ids_[i] = std::min(here, id);
      id = std::max(here, id);
    }
    ids_[size_++] = id;
    ids_[size_] = kNone;
  }
  // An occurrence of `id`, which must be there.
  void erase(uint32_t id) {
    for (size_t i = 0; i < size_; ++i) ids_[i] = ids_[i + (ids_[i] >= id ? 1 : 0)];
    --size_;
  }

  std::span<const uint32_t> all() const { return std::span(ids_).first(size_); }

 private:
  std::vector<uint32_t> ids_;  // [most + 1]
  size_t size_ = 0;
};

}  // namespace modelet::shard
