// CategoryFeatures: a column of values, or of several values in a cell, which are hashed to buckets of the column's own.
// Features: the cell is missing; a rare value, which fewer than min_count training records have; the known buckets. The
// values of a cell share its weight: their features are scaled to length one. State: known (KnownBuckets).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shard/data/encode/features/column_features.h"
#include "shard/data/encode/features/known_buckets.h"

namespace modelet::shard {

class CategoryFeatures : public ColumnFeatures {
 public:
  // With min_count = 1 no training record has a rare value, and values that training did not have are left out.
  CategoryFeatures(size_t column, std::optional<char> separator, uint32_t buckets, uint32_t min_count)
      : column_(column), separator_(separator), min_count_(min_count), known_(buckets) {}

  void count(const CellReader& cells, uint64_t record) override;
  void finish(uint64_t records) override;
  void know_all() override;
  void add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const override;
  void restore(const SafetensorsFile& state, const std::string& prefix) override;
  uint32_t features() const override { return features_; }
  std::unique_ptr<Appender> appender() const override;

 private:
  class RecordAppender;

  template <class Visit>
  void for_each_bucket(const CellReader& cells, const Visit& visit) const;

  const size_t column_;
  const std::optional<char> separator_;
  const uint32_t min_count_;
  KnownBuckets known_;
  uint32_t features_ = 0;
};

}  // namespace modelet::shard
