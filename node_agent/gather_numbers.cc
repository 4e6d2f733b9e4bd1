#include "node_agent/gather_numbers.h"

#include <cstring>

#include "base/error.h"

namespace modelet::agent {

std::vector<std::vector<uint64_t>> all_gather_numbers(comm::Group& group, comm::Tag tag,
                                                      std::span<const uint64_t> mine,
                                                      std::span<const size_t> counts) {
  // The exact codec moves the bits of floats unchanged, so a number travels as two of them.
  const comm::Codec& exact = comm::require_codec("none");
  const auto self = static_cast<size_t>(group.rank());
  MODELET_CHECK(mine.size() == counts[self]);
  std::vector<std::vector<float>> bits(counts.size());
  std::vector<std::vector<comm::InBlock>> theirs(counts.size());
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    bits[rank].resize(counts[rank] * 2);
    if (rank != self && counts[rank] > 0)
      theirs[rank].push_back({bits[rank].data(), 1, bits[rank].size(), bits[rank].size()});
  }
  std::vector<comm::OutBlock> out;
  if (!mine.empty()) {
    std::memcpy(bits[self].data(), mine.data(), mine.size_bytes());
    out.push_back({&exact, {bits[self].data(), 1, bits[self].size(), bits[self].size()}});
  }
  group.all_gather(tag, out, theirs);
  std::vector<std::vector<uint64_t>> numbers(counts.size());
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    numbers[rank].resize(counts[rank]);
    if (counts[rank] > 0)
      std::memcpy(numbers[rank].data(), bits[rank].data(), counts[rank] * sizeof(uint64_t));
  }
  return numbers;
}

}  // namespace modelet::agent
