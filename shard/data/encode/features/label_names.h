// LabelNames: the labels (or items) of a training text, numbered by falling frequency, so that a list of names is useful to read;
// ties as in the text. Labels that training did not have are left out and counted. One thread fits it; then any thread
// may use it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shard/data/encode/features/occurrences.h"
#include "shard/data/encode/features/string_table.h"

namespace modelet::shard {

class LabelNames {
 public:
  static constexpr size_t kMaxBytes = 4096;  // of a name

  LabelNames() = default;
  explicit LabelNames(StringTable names) : names_(std::move(names)) {}

  // Fitting: the labels of each sample, which is numbered from 1, at most kMaxBytes long; and then the end.
  void count(std::string_view label, uint64_t sample);
  void finish(uint32_t min_count = 1);  // labels of fewer samples are left out

  const StringTable& names() const { return names_; }
  // The ids of a sample's labels, ascending and without repetitions, instead of what is in `ids`. Returns how many names
  // training did not have.
  uint64_t find(std::span<const std::string_view> labels, std::vector<uint32_t>& ids) const;

 private:
  StringTable names_;                // while it is fitted, in the order of the text
  std::vector<Occurrences> counts_;  // of these
};

}  // namespace modelet::shard
