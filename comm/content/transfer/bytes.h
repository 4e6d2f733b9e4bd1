// Conversions between the bytes of messages (FlatBuffers has vectors of uint8_t) and the bytes of files
// (std::byte). Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace modelet::comm {

inline std::span<const std::byte> bytes_of(const std::vector<uint8_t>& message) {
  return std::as_bytes(std::span(message));
}

inline std::vector<uint8_t> message_bytes(std::span<const std::byte> bytes) {
  const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
  return {first, first + bytes.size()};
}

}  // namespace modelet::comm
