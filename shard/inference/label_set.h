// LabelSet: the labels among which answers are chosen, such as those in stock. LabelNumbers: the numbers of labels by
// their names. Both are immutable; any thread may read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace modelet::shard {

class LabelSet {
 public:
  // `chosen`: numbers below `labels`, those of the model, in any order. UsageError if there are none.
  LabelSet(size_t labels, std::span<const uint32_t> chosen);

  bool contains(uint32_t label) const { return contains_[label]; }
  size_t size() const { return size_; }

 private:
  std::vector<bool> contains_;  // [labels]
  size_t size_ = 0;
};

class LabelNumbers {
 public:
  // `names` [labels], which must outlive this object; empty: labels have no names.
  LabelNumbers(std::span<const std::string> names, size_t labels);

  // UsageError if there is no such label. Of labels with the same name, the first.
  uint32_t of(std::string_view name) const;
  uint32_t checked(uint64_t number) const;
  // Of what people write: a name or, if labels have none, a number.
  uint32_t parse(std::string_view text) const;

 private:
  std::span<const std::string> names_;
  size_t labels_;
  std::unordered_map<std::string_view, uint32_t> by_name_;
};

}  // namespace modelet::shard
