#include "shard/data/encode/features/label_names.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace modelet::shard {

void LabelNames::count(std::string_view label, uint64_t sample) {
  const uint32_t id = names_.insert(label);
  counts_.resize(names_.size());
  counts_[id].add(sample);
}

void LabelNames::finish(uint32_t min_count) {
  std::vector<uint32_t> order(counts_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return counts_[a].samples > counts_[b].samples; });
  StringTable ordered;
  for (const uint32_t label : order)
    if (counts_[label].samples >= min_count) ordered.insert(names_.at(label));
  names_ = std::move(ordered);
  counts_ = {};
}

uint64_t LabelNames::find(std::span<const std::string_view> labels, std::vector<uint32_t>& ids) const {
  ids.clear();
  uint64_t unknown = 0;
  for (const std::string_view name : labels) {
    const uint32_t label = names_.find(name);
    if (label == StringTable::kNone)
      ++unknown;
    else
      ids.push_back(label);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return unknown;
}

}  // namespace modelet::shard
