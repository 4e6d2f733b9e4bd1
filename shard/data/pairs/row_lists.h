// RowLists: lists of rows, one for each neuron of a range, such as the training samples that have its label. Immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "shard/data/store/dataset.h"
#include "shard/data/store/label_spread.h"

namespace modelet::shard {

class RowLists {
 public:
  // each(use) calls use(neuron, row) for all entries, neurons counted from the first of the range. It is called
  // twice, and must give the same entries both times. A neuron's rows keep the order in which they come.
  template <class Each>
  RowLists(size_t neurons, const Each& each) : offsets_(neurons + 1) {
    each([&](size_t neuron, uint32_t) { ++offsets_[neuron + 1]; });
    std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
    rows_.resize(offsets_.back());
    std::vector<uint64_t> next(offsets_.begin(), offsets_.end() - 1);
    each([&](size_t neuron, uint32_t row) { rows_[next[neuron]++] = row; });
  }

  // The rows that have the label of each of the neurons [first, first + neurons).
  static RowLists by_label(const Dataset& data, std::span<const uint32_t> rows, const LabelSpread& spread,
                           size_t first, size_t neurons) {
    return {neurons, [&](const auto& use) {
              for (const uint32_t row : rows)
                for (const uint32_t label : data.sample(row).labels)
                  if (const uint32_t neuron = spread.neuron(label);
                      neuron >= first && neuron - first < neurons)
                    use(neuron - first, row);
            }};
  }

  std::span<const uint32_t> of(size_t neuron) const {
    return std::span(rows_).subspan(offsets_[neuron], offsets_[neuron + 1] - offsets_[neuron]);
  }

 private:
  std::vector<uint64_t> offsets_;  // [neurons + 1] into rows_
  std::vector<uint32_t> rows_;
};

}  // namespace modelet::shard
