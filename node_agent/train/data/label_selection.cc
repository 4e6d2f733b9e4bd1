#include "node_agent/train/data/label_selection.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "comm/collectives/gather_numbers.h"
#include "node_agent/step/exchange/rounds.h"

namespace modelet::agent {
namespace {

// The most labels that a rank sends in one round, with 8 bytes each.
constexpr size_t kAtOnce = size_t{1} << 20;

uint64_t entry_number(uint32_t sample, uint32_t label) { return uint64_t{sample} << 32 | label; }

}  // namespace

std::vector<shard::NeuronRange> output_neurons(std::span<const ModeletSpec> modelets) {
  std::vector<shard::NeuronRange> ranges;
  for (const ModeletSpec& modelet : modelets) {
    if (modelet.kind != LayerKind::kOutput) continue;
    if (!ranges.empty() && ranges.back().end == modelet.begin)
      ranges.back().end = modelet.end;
    else
      ranges.push_back({modelet.begin, modelet.end});
  }
  return ranges;
}

std::vector<shard::NeuronRange> output_neurons(const TrainJob& job) {
  return output_neurons(sharding_of(job).held());
}

void complete_labels(shard::Dataset& data, std::span<const uint32_t> rows, comm::Group& group,
                     comm::Tag tag) {
  if (group.size() == 1) return;
  const auto size = static_cast<size_t>(group.size()), self = static_cast<size_t>(group.rank());
  std::vector<uint64_t> mine;
  for (const uint32_t row : rows)
    for (const uint32_t label : data.sample(row).labels) mine.push_back(entry_number(row, label));
  const auto next = [&tag] { return std::exchange(tag, tag.later(1)); };
  std::vector<size_t> left;  // labels that each rank must still send
  for (const auto& count :
       all_gather_numbers(group, next(), std::vector<uint64_t>{mine.size()}, std::vector<size_t>(size, 1)))
    left.push_back(count.front());
  if (std::ranges::max(left) > kAtOnce * (kLabelRounds - 1))
    throw Error("the samples that data.validation holds out have too many labels: hold fewer of them out");

  std::vector<shard::LabelEntry> entries;
  std::span<const uint64_t> to_send = mine;
  while (std::ranges::any_of(left, [](size_t count) { return count > 0; })) {
    std::vector<size_t> now(size);
    for (size_t rank = 0; rank < size; ++rank) left[rank] -= now[rank] = std::min(left[rank], kAtOnce);
    const auto theirs = all_gather_numbers(group, next(), to_send.first(now[self]), now);
    to_send = to_send.subspan(now[self]);
    for (size_t rank = 0; rank < size; ++rank) {
      if (rank == self) continue;
      for (const uint64_t entry : theirs[rank]) {
        const auto sample = static_cast<uint32_t>(entry >> 32), label = static_cast<uint32_t>(entry);
        if (label >= data.labels() || !std::ranges::binary_search(rows, sample))
          throw FormatError("node '" + group.node_name(static_cast<int>(rank)) +
                            "' sent labels of samples that are not held out");
        entries.push_back({sample, label});
      }
    }
  }
  data.add_labels(entries);
}

}  // namespace modelet::agent
