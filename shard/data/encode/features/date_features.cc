#include "shard/data/encode/features/date_features.h"

#include <algorithm>
#include <limits>
#include <span>

#include "base/error.h"
#include "base/text/value_name.h"

namespace modelet::shard {
namespace {

constexpr uint32_t kMonths = 12, kDays = 31, kWeekdays = 7, kHours = 24, kLastYear = 9999;
constexpr uint32_t kDaySlot = kMonths, kWeekdaySlot = kDaySlot + kDays, kHourSlot = kWeekdaySlot + kWeekdays,
                   kYearSlot = kHourSlot + kHours;

float number_of(const std::optional<Date>& date) {
  return date ? static_cast<float>(date->days) : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

DateFeatures::DateFeatures(size_t column) : column_(column), number_({NumberKind::kStandardised}, 0) {}

std::optional<Date> DateFeatures::date_of(const CellReader& cells) const {
  const std::string_view text = cells.cell(column_);
  auto date = parse_date(text);
  if (!date && !is_missing_number(text) && text != "NaT")
    cells.fail(column_, "expected a date such as 2026-11-30 or 2026-11-30T09:41, or nothing if it is missing, found " +
                            quoted(text));
  return date;
}

void DateFeatures::count(const CellReader& cells, uint64_t) {
  const std::optional<Date> date = date_of(cells);
  const float number = number_of(date);
  number_.count({&number, 1});
  if (!date) return;
  const auto year = static_cast<uint32_t>(date->year);
  const uint32_t first = years_[1] == 0 ? year : std::min(years_[0], year);
  const uint32_t last = years_[1] == 0 ? year : std::max(years_[0] + years_[1] - 1, year);
  years_ = {first, last - first + 1};
}

void DateFeatures::finish(uint64_t) {
  if (years_[1] > kMostYears) years_ = {years_[0] + years_[1] - kMostYears, kMostYears};  // the last ones
  number_.finish();
  number_features();
}

void DateFeatures::number_features() {
  number_slot_ = kYearSlot + years_[1];
  features_ = number_.number_from(number_slot_);
}

void DateFeatures::add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const {
  tensors.push_back(tensor(prefix + "years", {years_.size()}, years_));
  number_.add_tensors(prefix, tensors);
}

void DateFeatures::restore(const SafetensorsFile& state, const std::string& prefix) {
  const auto years = state.values<uint32_t>(prefix + "years", {years_.size()});
  std::ranges::copy(years, years_.begin());
  if (years_[0] > kLastYear || years_[1] > kMostYears)
    throw FormatError(state.path().string() + ": damaged: its years are out of range");
  number_.restore(state, prefix);
  number_features();
}

class DateFeatures::RecordAppender : public Appender {
 public:
  explicit RecordAppender(const DateFeatures& of) : of_(of) {}

  void append(const CellReader& cells, FeatureList& features) override {
    const std::optional<Date> date = of_.date_of(cells);
    if (date) {
      features.add(date->month - 1);
      features.add(kDaySlot + date->day - 1);
      features.add(kWeekdaySlot + date->weekday);
      if (date->hour) features.add(kHourSlot + *date->hour);
      const uint32_t year = static_cast<uint32_t>(date->year) - of_.years_[0];
      if (year < of_.years_[1]) features.add(kYearSlot + year);
    }
    const float number = number_of(date);
    of_.number_.append({&number, 1}, features);
  }

 private:
  const DateFeatures& of_;
};

std::unique_ptr<ColumnFeatures::Appender> DateFeatures::appender() const {
  return std::make_unique<RecordAppender>(*this);
}

}  // namespace modelet::shard
