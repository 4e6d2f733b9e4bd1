// FeatureRows: which features have rows in the input layer. These are the features that occur in the training
// data, in the order of their ids. A feature that does not occur would keep its random first weights: it takes
// no memory, and adds nothing to a sample (docs/decisions/0029-rows-of-features-that-occur.md). Like
// LabelSpread it belongs to the data. Its memory grows with the features that occur; for all others together it
// takes a byte for each 128 of them. Immutable; any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shard/data/store/dataset.h"

namespace modelet::shard {

class FeatureRows {
 public:
  // Every feature has the row of its number.
  explicit FeatureRows(uint64_t features) : features_(features) {}
  // Features `ids`, ascending and below `features`.
  FeatureRows(uint64_t features, std::span<const uint32_t> ids);
  // The features that occur in `data`, and those that `earlier` has rows for. If there is none, one has a row.
  static FeatureRows of(const Dataset& data, const FeatureRows* earlier = nullptr);

  static constexpr uint32_t kNone = ~uint32_t{0};
  uint64_t features() const { return features_; }
  bool all() const { return ids_.empty(); }
  uint64_t count() const { return all() ? features_ : ids_.size(); }
  // kNone: the feature has no row.
  uint32_t row(uint32_t feature) const {
    return all() ? feature : pages_[directory_[feature / kPage] + feature % kPage];
  }
  uint32_t feature(size_t row) const { return all() ? static_cast<uint32_t>(row) : ids_[row]; }
  // The feature of each row; empty if all have rows.
  std::span<const uint32_t> ids() const { return ids_; }
  size_t memory_bytes() const { return (ids_.size() + directory_.size() + pages_.size()) * sizeof(uint32_t); }

 private:
  static constexpr size_t kPage = 512;  // features

  uint64_t features_;
  std::vector<uint32_t> ids_;
  std::vector<uint32_t> directory_;  // where the page of a feature begins; 0: a page without rows
  std::vector<uint32_t> pages_;      // rows
};

}  // namespace modelet::shard
