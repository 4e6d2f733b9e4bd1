// TableFeatures: columns of numbers, categories and crosses (base/experiment/table_layout.h). Its features, in this
// order:
//
//   for each number column    missing; then its bins, or the standardised value
//   for each category column  missing; rare: all values that fewer than table.min_count training samples have
//   for each cross            rare
//   for each bucket           all values of categories and crosses that are hashed into it, unless all of
//                             them are rare
//
// There are table.hash_features buckets; only known buckets have a feature, and so rows of weights.
//
// All features have the value 1, except standardised numbers, and buckets into which several values of a
// record fall, which have their number. With table.min_count = 1 no training sample has a rare feature;
// values that training did not have are then left out. State: known (KnownBuckets), and that of NumberFeatures.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "base/experiment/table_layout.h"
#include "shard/data/encode/features/column_features.h"
#include "shard/data/encode/features/known_buckets.h"
#include "shard/data/encode/features/number_features.h"
#include "shard/data/read/table_values.h"

namespace modelet::shard {

class TableFeatures : public ColumnFeatures {
 public:
  // Columns of `layout` are those of the cells.
  TableFeatures(TableLayout layout, const Experiment::Table& options);

  void count(const CellReader& cells, uint64_t record) override;
  void finish(uint64_t records) override;
  void add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const override;
  void restore(const SafetensorsFile& state, const std::string& prefix) override;
  uint32_t features() const override { return features_; }
  std::unique_ptr<Appender> appender() const override;

 private:
  class RecordAppender;

  void number_features();

  const TableLayout layout_;
  const uint32_t hash_features_, min_count_;
  NumberFeatures numbers_;
  KnownBuckets known_;
  TableValues values_;  // of the records that it is fitted to
  TableRecord record_;
  uint32_t category_slot_ = 0, cross_slot_ = 0;  // features where these kinds begin
  uint32_t features_ = 0;
};

}  // namespace modelet::shard
