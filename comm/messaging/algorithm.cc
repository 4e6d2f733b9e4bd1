#include "comm/messaging/algorithm.h"

#include <bit>

#include "base/error.h"

namespace modelet::comm {
namespace {

// Picoseconds.
constexpr uint64_t kLatency = 100'000'000;  // a LAN's 50 us, and two hand-overs between threads
constexpr uint64_t kMessage = 15'000'000;   // system calls and queues at both ends
constexpr uint64_t kByte = 8'000;           // 1 Gbit/s
constexpr uint64_t kPassOn = 1'000;         // for each byte of another rank: checksum, copy, checksum

}  // namespace

uint64_t expected_cost(Algorithm algorithm, size_t bytes, int ranks) {
  MODELET_CHECK(ranks >= 1);
  const uint64_t others = static_cast<uint64_t>(ranks) - 1;
  if (others == 0) return 0;
  switch (algorithm) {
    case Algorithm::kDirect:
      return kLatency + others * (kMessage + bytes * kByte);
    case Algorithm::kDissemination:
      return static_cast<uint64_t>(std::bit_width(others)) * (kLatency + kMessage) +
             others * bytes * (kByte + kPassOn);
    case Algorithm::kReduceScatter:
      return 2 * (kLatency + others * (kMessage + bytes / static_cast<uint64_t>(ranks) * kByte));
  }
  MODELET_CHECK(false);
}

Algorithm choose(Operation operation, size_t bytes, int ranks) {
  Algorithm best = Algorithm::kDirect;  // wins ties: no message has to wait for another
  const auto consider = [&](Algorithm other) {
    if (expected_cost(other, bytes, ranks) < expected_cost(best, bytes, ranks)) best = other;
  };
  consider(Algorithm::kDissemination);
  if (operation == Operation::kAllReduce) consider(Algorithm::kReduceScatter);
  return best;
}

}  // namespace modelet::comm
