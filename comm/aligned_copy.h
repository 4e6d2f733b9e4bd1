// FlatBuffers are read in place and want an aligned start, which a received message need not have: one that
// was decrypted, or that ZeroMQ left in the buffer it reads into, begins somewhere. Internal to comm/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace modelet::comm {

// The bytes at the beginning of `memory`, which grows and never shrinks. Valid until the next use of it.
inline std::span<const uint8_t> aligned_copy(std::span<const std::byte> bytes,
                                             std::vector<uint64_t>& memory) {
  const size_t words = (bytes.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  if (memory.size() < words) memory.resize(words);
  if (!bytes.empty()) std::memcpy(memory.data(), bytes.data(), bytes.size());
  return {reinterpret_cast<const uint8_t*>(memory.data()), bytes.size()};
}

}  // namespace modelet::comm
