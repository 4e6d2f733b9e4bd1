#include "comm/collectives/gather_numbers.h"

#include "base/error.h"

namespace modelet::comm {

std::vector<std::vector<uint64_t>> all_gather_numbers(Group& group, Tag tag, std::span<const uint64_t> mine,
                                                      std::span<const size_t> counts, double patience) {
  const auto self = static_cast<size_t>(group.rank());
  MODELET_CHECK(mine.size() == counts[self]);
  std::vector<std::vector<uint64_t>> numbers(counts.size());
  std::vector<std::vector<InBlock>> theirs(counts.size());
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    numbers[rank].resize(counts[rank]);
    theirs[rank].push_back(std::as_writable_bytes(std::span(numbers[rank])));
  }
  numbers[self].assign(mine.begin(), mine.end());
  const OutBlock out{.bytes = std::as_bytes(mine)};
  group.all_gather(tag, std::span(&out, 1), theirs, patience);
  return numbers;
}

}  // namespace modelet::comm
