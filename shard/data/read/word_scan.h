// for_each_word: visits the words of a text, which lie between separators. Whether bytes are separators is
// computed for 64 bytes at once, in a loop that compilers turn into vector instructions; words are then read
// off a bit mask (after Langdale and Lemire 2019, arXiv:1902.08318). A loop over single bytes would have a
// branch at the end of every word, which processors predict badly.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace modelet::shard {

inline constexpr size_t kScanBlock = 64;  // bytes: bits of a mask

// Bit i: separates(block[i]).
template <class Separates>
uint64_t separator_mask(const char* block, const Separates& separates) {
  static_assert(std::endian::native == std::endian::little);
  constexpr uint64_t kGather = 0x0102040810204080;  // moves bit 0 of byte i to bit i of the last byte
  std::array<uint8_t, kScanBlock> flags;
  for (size_t i = 0; i < kScanBlock; ++i) flags[i] = separates(static_cast<uint8_t>(block[i])) ? 1 : 0;
  uint64_t mask = 0;
  for (size_t i = 0; i < kScanBlock; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, &flags[i], sizeof eight);
    mask |= (eight * kGather >> 56) << i;
  }
  return mask;
}

// White space as in fastText: also vertical tab, form feed and the zero byte.
inline constexpr auto is_space = [](uint8_t c) {
  return (c == ' ') | (static_cast<uint8_t>(c - '\t') <= '\r' - '\t') | (c == 0);
};

// Calls visit(std::string_view) for each word. `separates`: uint8_t -> bool without branches; true for the
// zero byte.
template <class Separates, class Visit>
void for_each_word(std::string_view text, const Separates& separates, const Visit& visit) {
  constexpr size_t kNone = SIZE_MAX;
  size_t begin = kNone;  // of the word that the scan is in
  // The zeros of the last block, or the block of zeros after it, end the last word.
  for (size_t at = 0; at <= text.size(); at += kScanBlock) {
    std::array<char, kScanBlock> rest;
    const char* block = text.data() + at;
    if (text.size() - at < kScanBlock) {
      rest.fill(0);
      text.substr(at).copy(rest.data(), kScanBlock);
      block = rest.data();
    }
    // A word begins or ends where a bit differs from its predecessor.
    const uint64_t letters = ~separator_mask(block, separates);
    for (uint64_t edges = letters ^ (letters << 1 | (begin != kNone ? 1 : 0)); edges != 0;
         edges &= edges - 1) {
      const size_t edge = at + static_cast<size_t>(std::countr_zero(edges));
      if (begin != kNone) visit(std::string_view(text.data() + begin, edge - begin));
      begin = begin == kNone ? edge : kNone;
    }
  }
}

}  // namespace modelet::shard
