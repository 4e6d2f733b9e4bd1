// DateFeatures: a column of dates (shard/data/read/date.h). Features: the month, the day of the month, the weekday, the
// hour where there is one, the year if training has it, and the date itself as a number: missing, its standardised value.
// State: years, as below, and that of NumberFeatures.
//
//   years U32 [2]   the first year of training and how many there are, at most kMostYears; 0 and 0: no dates
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shard/data/encode/features/column_features.h"
#include "shard/data/encode/features/number_features.h"
#include "shard/data/read/date.h"

namespace modelet::shard {

class DateFeatures : public ColumnFeatures {
 public:
  static constexpr uint32_t kMostYears = 256;

  explicit DateFeatures(size_t column);

  void count(const CellReader& cells, uint64_t record) override;
  void finish(uint64_t records) override;
  void add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const override;
  void restore(const SafetensorsFile& state, const std::string& prefix) override;
  uint32_t features() const override { return features_; }
  std::unique_ptr<Appender> appender() const override;

 private:
  class RecordAppender;

  // Nothing if it is missing.
  std::optional<Date> date_of(const CellReader& cells) const;
  void number_features();

  const size_t column_;
  std::array<uint32_t, 2> years_{};
  NumberFeatures number_;
  uint32_t number_slot_ = 0, features_ = 0;
};

}  // namespace modelet::shard
