#include "shard/data/encode/features/table_features.h"

#include <utility>

#include "base/array/padding.h"
#include "shard/kernels/ids.h"

namespace modelet::shard {
namespace {

constexpr uint32_t kFeaturesOfCategory = 2, kMissingAt = 0, kRareAt = 1;

std::vector<NumberKind> kinds_of(const TableLayout& layout) {
  std::vector<NumberKind> kinds;
  for (const TableLayout::Number& number : layout.numbers) kinds.push_back(number.kind);
  return kinds;
}

}  // namespace

TableFeatures::TableFeatures(TableLayout layout, const Experiment::Table& options)
    : layout_(std::move(layout)),
      hash_features_(options.hash_features),
      min_count_(options.min_count),
      numbers_(kinds_of(layout_), options.bins),
      known_(options.hash_features),
      values_(layout_, options.hash_features) {}

void TableFeatures::count(const CellReader& cells, uint64_t record) {
  values_.read(cells, record_);
  numbers_.count(record_.numbers);
  for (const uint32_t bucket : record_.buckets)
    if (bucket != TableRecord::kMissing) known_.count(bucket, record);
}

void TableFeatures::finish(uint64_t) {
  known_.finish(min_count_);
  numbers_.finish();
  number_features();
}

// Places the kinds of features one after the other, and the known buckets after them.
void TableFeatures::number_features() {
  category_slot_ = numbers_.number_from(0);
  cross_slot_ = category_slot_ + kFeaturesOfCategory * static_cast<uint32_t>(layout_.categories.size());
  features_ = known_.number_from(cross_slot_ + static_cast<uint32_t>(layout_.crosses.size()));
}

void TableFeatures::add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const {
  tensors.push_back(known_.as_tensor(prefix + "known"));
  numbers_.add_tensors(prefix, tensors);
}

void TableFeatures::restore(const SafetensorsFile& state, const std::string& prefix) {
  known_.restore(state, prefix + "known");
  numbers_.restore(state, prefix);
  number_features();
}

class TableFeatures::RecordAppender : public Appender {
 public:
  explicit RecordAppender(const TableFeatures& of) : of_(of), values_(of.layout_, of.hash_features_) {}

  void append(const CellReader& cells, FeatureList& features) override {
    values_.read(cells, record_);
    found_.clear();
    of_.numbers_.append(record_.numbers, features);
    const size_t categories = of_.layout_.categories.size();
    for (size_t i = 0; i < record_.buckets.size(); ++i) {
      if (i < categories)
        add_value(of_.category_slot_ + kFeaturesOfCategory * static_cast<uint32_t>(i), kRareAt, record_.buckets[i],
                  features);
      else
        add_value(of_.cross_slot_ + static_cast<uint32_t>(i - categories), 0, record_.buckets[i], features);
    }
    append_found(features);
  }

 private:
  // A category or cross; its own features begin at `slot`.
  void add_value(uint32_t slot, uint32_t rare_at, uint32_t bucket, FeatureList& features) {
    if (bucket == TableRecord::kMissing)
      features.add(slot + kMissingAt);
    else if (const uint32_t feature = of_.known_.feature_of(bucket); feature != kNoFeature)
      found_.push_back(feature);
    else if (of_.min_count_ > 1)
      features.add(slot + rare_at);
  }

  void append_found(FeatureList& features) {
    const size_t count = found_.size();
    found_.resize(count + kVectorFloats);
    kernels::sort_ids(found_.data(), count);
    found_.resize(count);
    uint32_t last = kNoFeature;
    for (const uint32_t feature : found_) {
      if (feature != last)
        features.add(feature);
      else
        features.values.back() += 1;
      last = feature;
    }
  }

  const TableFeatures& of_;
  TableValues values_;
  TableRecord record_;
  std::vector<uint32_t> found_;
};

std::unique_ptr<ColumnFeatures::Appender> TableFeatures::appender() const {
  return std::make_unique<RecordAppender>(*this);
}

}  // namespace modelet::shard
