#include "node_agent/train/recipe/data_facts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "shard/data/store/feature_rows.h"

namespace modelet::agent {
namespace {

constexpr size_t kMostRows = 200000;  // rows that are read: enough for means, and at most a second of work
constexpr double kUnitLength = 0.01;  // texts round values to four digits
constexpr uint32_t kRareSamples = 2;         // samples
constexpr uint32_t kOftenSamples = 100;      // samples

// Finds out whether labels avoid the feature with their own number, or come with it. They do if features and labels are
// the same items, which a sample never has as both, or often. If the numbers were unrelated, a sample
// would have both now and then. One number alone says little about this, so all are counted together.
class OwnNumbers {
 public:
  explicit OwnNumbers(const shard::Dataset& train) : seen_(std::min(train.features(), train.labels())) {}

  void add(const shard::Sample& sample) {
    ++rows_;
    for (const uint32_t feature : sample.features)
      if (feature < seen_.size()) {
        ++seen_[feature].as_feature;
        seen_[feature].row = rows_;
      }
    labels_ += sample.labels.size();
    for (const uint32_t label : sample.labels)
      if (label < seen_.size()) {
        ++seen_[label].as_label;
        together_ += seen_[label].row == rows_;
      }
  }
  bool apart() const {
    constexpr double kEnough = 30, kNever = 0.01;
    return expected() >= kEnough && static_cast<double>(together_) <= kNever * expected();
  }
  // The share of the labels that are features of their samples, if that is no chance.
  double share() const {
    constexpr double kMany = 10, kEnough = 30;  // of what chance would bring; labels
    const auto together = static_cast<double>(together_);
    return together >= kEnough && together >= kMany * expected() ? together / static_cast<double>(labels_) : 0;
  }

 private:
  double expected() const {  // labels that are features of their samples by chance
    constexpr double kMostOfOne = 1;
    double expected = 0;
    for (const Seen& item : seen_)
      expected += std::min(kMostOfOne, item.as_feature * item.as_label / static_cast<double>(rows_));
    return expected;
  }
  struct Seen {
    double as_feature = 0, as_label = 0;
    size_t row = 0;  // the last row with the feature
  };
  std::vector<Seen> seen_;
  size_t rows_ = 0, labels_ = 0, together_ = 0;
};

// model.exclude_own takes only a positive value for an item that the sample has.
bool all_positive(const shard::Dataset& train) {
  for (size_t row = 0; row < train.rows(); ++row)
    if (!std::ranges::all_of(train.sample(row).values, [](float value) { return value > 0; })) return false;
  return true;
}

}  // namespace

DataFacts measure_facts(const shard::Dataset& train) {
  DataFacts facts{.rows = train.rows(),
                  .features = train.features(),
                  .labels = train.labels(),
                  .smallest = std::numeric_limits<float>::infinity(),
                  .largest = -std::numeric_limits<float>::infinity(),
                  .unit_rows = true};
  if (const auto used = shard::FeatureRows::of(train); !used.all()) facts.occurring_features = used.count();
  const size_t every = (train.rows() + kMostRows - 1) / kMostRows;
  OwnNumbers own(train);
  for (size_t row = 0; row < train.rows(); row += every) {
    own.add(train.sample(row));
    double square = 0;
    for (const float value : train.sample(row).values) {
      facts.smallest = std::min(facts.smallest, value);
      facts.largest = std::max(facts.largest, value);
      square += static_cast<double>(value) * value;
    }
    if (square > 0 && std::abs(std::sqrt(square) - 1) > kUnitLength) facts.unit_rows = false;
  }
  for (size_t row = 0; row < train.rows(); ++row)
    facts.most_labels = std::max<uint64_t>(facts.most_labels, train.label_count(row));
  uint32_t top = 0;
  uint64_t often = 0;
  for (const uint32_t count : train.frequencies()) {
    facts.unseen_labels += count == 0;
    facts.rare_labels += count > 0 && count <= kRareSamples;
    top = std::max(top, count);
    if (count >= kOftenSamples) often += count;
  }
  const auto rows = static_cast<double>(std::max<size_t>(train.rows(), 1));
  facts.features_per_row = static_cast<double>(train.nonzeros()) / rows;
  facts.labels_per_row = static_cast<double>(train.label_entries()) / rows;
  facts.often_share =
      static_cast<double>(often) / static_cast<double>(std::max<size_t>(train.label_entries(), 1));
  facts.top_share = top / rows;
  if (facts.smallest > facts.largest) facts.smallest = facts.largest = 0;
  facts.own_excluded = own.apart() && all_positive(train);
  facts.own_share = own.share();
  facts.one_value = facts.smallest == facts.largest;
  return facts;
}

DataShape shape_of(const DataFacts& facts) {
  return {.features = facts.features,
          .labels = facts.labels,
          .train_rows = facts.rows,
          .features_per_row = facts.features_per_row,
          .labels_per_row = facts.labels_per_row,
          .occurring_features = facts.occurring_features};
}

nlohmann::json to_json(const DataFacts& facts) {
  return {{"rows", facts.rows},
          {"features", facts.features},
          {"labels", facts.labels},
          {"features_per_row", facts.features_per_row},
          {"labels_per_row", facts.labels_per_row},
          {"most_labels", facts.most_labels},
          {"unseen_labels", facts.unseen_labels},
          {"rare_labels", facts.rare_labels},
          {"often_share", facts.often_share},
          {"top_share", facts.top_share},
          {"smallest", facts.smallest},
          {"largest", facts.largest},
          {"unit_rows", facts.unit_rows},
          {"own_excluded", facts.own_excluded},
          {"own_share", facts.own_share},
          {"one_value", facts.one_value}};
}

}  // namespace modelet::agent
