// AlignedCopy: FlatBuffers are read in place and want an aligned start, which a received message need not
// have: one that was decrypted, or that ZeroMQ left in the buffer it reads into, begins somewhere. Up to
// kInlineBytes are copied without allocating. Internal to comm/.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace modelet::comm {

template <size_t kInlineBytes>
class AlignedCopy {
 public:
  explicit AlignedCopy(std::span<const std::byte> bytes) : size_(bytes.size()) {
    if (size_ > kInlineBytes) large_.resize(size_ / sizeof(uint64_t) + 1);
    if (size_ > 0) std::memcpy(words(), bytes.data(), size_);
  }
  const uint8_t* data() { return reinterpret_cast<const uint8_t*>(words()); }
  size_t size() const { return size_; }

 private:
  uint64_t* words() { return large_.empty() ? small_.data() : large_.data(); }

  size_t size_;
  std::array<uint64_t, (kInlineBytes + sizeof(uint64_t) - 1) / sizeof(uint64_t)> small_;
  std::vector<uint64_t> large_;
};

}  // namespace modelet::comm
