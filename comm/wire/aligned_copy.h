// FlatBuffers are read in place and must be aligned. A received message may start anywhere, if it was
// decrypted or if ZeroMQ left it in its read buffer. Internal to comm/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace modelet::comm {

// Copies the bytes to the beginning of `memory`, which never shrinks. The result is valid until the next
// use of `memory`.
inline std::span<const uint8_t> aligned_copy(std::span<const std::byte> bytes,
                                             std::vector<uint64_t>& memory) {
  const size_t words = (bytes.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  if (memory.size() < words) memory.resize(words);
  if (!bytes.empty()) std::memcpy(memory.data(), bytes.data(), bytes.size());
  return {reinterpret_cast<const uint8_t*>(memory.data()), bytes.size()};
}

}  // namespace modelet::comm
