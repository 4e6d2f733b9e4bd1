// StringTable: distinct strings, numbered in the order in which they came: label names, words. Strings lie in
// one block of memory and the hash table beside it holds numbers only, so that a million words cost little
// more than their letters. Any thread may read a table that nobody changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace modelet::shard {

class StringTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  StringTable() : slots_(kFirstSlots, kNone) {}
  // From strings that were all() of another table; FormatError that starts with `origin` if offsets do not
  // ascend from 0 to the end or if a string occurs twice.
  StringTable(std::span<const uint64_t> offsets, std::string_view strings, const std::string& origin);

  size_t size() const { return offsets_.size() - 1; }
  size_t bytes() const { return strings_.size(); }
  std::string_view at(uint32_t id) const {
    return std::string_view(strings_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }

  uint32_t find(std::string_view text) const;  // kNone if it is not there
  uint32_t insert(std::string_view text);      // its number, new or old

  // For files: string i is strings[offsets[i], offsets[i + 1]).
  std::span<const uint64_t> offsets() const { return offsets_; }
  std::string_view strings() const { return strings_; }

 private:
  static constexpr size_t kFirstSlots = 1024;

  // The slot that holds `text`, or the empty one where it belongs.
  size_t slot_of(std::string_view text) const;
  void grow();

  std::string strings_;
  std::vector<uint64_t> offsets_ = {0};
  std::vector<uint32_t> slots_;  // numbers, by hash, linear probing; a power of two, at most half full
};

}  // namespace modelet::shard
