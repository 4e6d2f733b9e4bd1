#include "shard/data/encode/features/category_features.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "shard/data/read/sample.h"
#include "shard/data/read/table_values.h"

namespace modelet::shard {
namespace {

constexpr uint32_t kMissingCell = 0, kRare = 1, kFirstBucket = 2;
constexpr uint64_t kNoSalt = 0;  // a column has buckets of its own

}  // namespace

template <class Visit>
void CategoryFeatures::for_each_bucket(const CellReader& cells, const Visit& visit) const {
  for_each_part(cells.cell(column_), separator_, [&](std::string_view value) {
    visit(bucket_of(category_hash(value, kNoSalt, true), known_.buckets()));
  });
}

void CategoryFeatures::count(const CellReader& cells, uint64_t record) {
  for_each_bucket(cells, [&](uint32_t bucket) { known_.count(bucket, record); });
}

void CategoryFeatures::finish(uint64_t) {
  known_.finish(min_count_);
  features_ = known_.number_from(kFirstBucket);
}

void CategoryFeatures::know_all() {
  known_.know_all();
  features_ = known_.number_from(kFirstBucket);
}

void CategoryFeatures::add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const {
  tensors.push_back(known_.as_tensor(prefix + "known"));
}

void CategoryFeatures::restore(const SafetensorsFile& state, const std::string& prefix) {
  known_.restore(state, prefix + "known");
  features_ = known_.number_from(kFirstBucket);
}

class CategoryFeatures::RecordAppender : public Appender {
 public:
  explicit RecordAppender(const CategoryFeatures& of) : of_(of) {}

  void append(const CellReader& cells, FeatureList& features) override {
    found_.clear();
    bool empty = true;
    of_.for_each_bucket(cells, [&](uint32_t bucket) {
      empty = false;
      const uint32_t feature = of_.known_.feature_of(bucket);
      if (feature != kNoFeature)
        found_.push_back(feature);
      else if (of_.min_count_ > 1)
        found_.push_back(kRare);
    });
    if (empty) found_.push_back(kMissingCell);
    std::ranges::sort(found_);
    const size_t first = features.values.size();
    for (size_t i = 0; i < found_.size(); ++i) {
      if (i > 0 && found_[i] == found_[i - 1])
        features.values.back() += 1;
      else
        features.add(found_[i]);
    }
    if (found_.size() < 2) return;
    const std::span<float> values = std::span(features.values).subspan(first);
    double squares = 0;
    for (const float value : values) squares += double{value} * double{value};
    for (float& value : values) value *= inverse_length(squares);
  }

 private:
  const CategoryFeatures& of_;
  std::vector<uint32_t> found_;
};

std::unique_ptr<ColumnFeatures::Appender> CategoryFeatures::appender() const {
  return std::make_unique<RecordAppender>(*this);
}

}  // namespace modelet::shard
