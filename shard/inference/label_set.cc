#include "shard/inference/label_set.h"

#include <charconv>

#include "base/error.h"
#include "base/text/printable.h"

namespace modelet::shard {

LabelSet::LabelSet(size_t labels, std::span<const uint32_t> chosen) : contains_(labels) {
  if (chosen.empty())
    throw UsageError("no label is named among which to choose: name some, or leave the list out");
  for (const uint32_t label : chosen) {
    MODELET_CHECK(label < labels, "numbers of labels are checked before");
    size_ += contains_[label] ? 0 : 1;
    contains_[label] = true;
  }
}

LabelNumbers::LabelNumbers(std::span<const std::string> names, size_t labels)
    : names_(names), labels_(labels) {
  by_name_.reserve(names.size());
  for (uint32_t label = 0; label < names.size(); ++label) by_name_.try_emplace(names[label], label);
}

uint32_t LabelNumbers::of(std::string_view name) const {
  constexpr size_t kShown = 100;
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return found->second;
  throw UsageError("'" + printable(name, kShown) + "' is " +
                   (names_.empty() ? "a name, and labels of this model have only numbers"
                                   : "not among the names of the " + std::to_string(labels_) + " labels"));
}

uint32_t LabelNumbers::checked(uint64_t number) const {
  if (number < labels_) return static_cast<uint32_t>(number);
  throw UsageError("there is no label " + std::to_string(number) + "; the model has " +
                   std::to_string(labels_) + ", from 0");
}

uint32_t LabelNumbers::parse(std::string_view text) const {
  if (!names_.empty()) return of(text);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return of(text);
  return checked(number);
}

}  // namespace modelet::shard
