// StringTable: distinct strings, numbered in the order in which they came: label names, words. Strings lie in
// one block of memory. Each also has a key, which identifies a short string by itself, and the hash table
// holds only numbers. Frequent words that came first therefore lie close together and stay in the cache, and
// a million words cost at most 60 MB besides their letters. Any thread may read a table that nobody changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/array/aligned.h"

namespace modelet::shard {

class StringTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  StringTable() : slots_(kFirstSlots) {}
  // Restores a table from its offsets() and strings(). FormatError that starts with `origin` if offsets do
  // not ascend from 0 to the end or if a string occurs twice.
  StringTable(std::span<const uint64_t> offsets, std::string_view strings, const std::string& origin);

  size_t size() const { return offsets_.size() - 1; }
  size_t bytes() const { return strings_.size(); }
  std::string_view at(uint32_t id) const {
    return std::string_view(strings_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }

  uint32_t find(std::string_view text) const;  // kNone if it is not there
  uint32_t insert(std::string_view text);      // its number, new or old

  // The same for many strings of a text that a LineReader returned, into ids [strings]; several times as
  // fast.
  void find(std::span<const std::string_view> strings, std::span<uint32_t> ids) const;
  void insert(std::span<const std::string_view> strings, std::span<uint32_t> ids);

  // For files: string i is strings[offsets[i], offsets[i + 1]).
  std::span<const uint64_t> offsets() const { return offsets_; }
  std::string_view strings() const { return strings_; }

 private:
  static constexpr size_t kFirstSlots = 16;

  // The key of a short string: its bytes, then zeros, and its length in the last byte. The key of a long one
  // is its hash and its length, which another string may share.
  struct Key {
    uint64_t low, high;
    bool operator==(const Key&) const = default;
  };
  struct Slot {
    uint32_t hash = 0, id = kNone;
  };
  // A string that may be in the table.
  struct Sought {
    std::string_view text;
    Key key;
    uint32_t hash;
  };

  static Sought sought(std::string_view text);
  // Faster, but reads up to kReadableBehind bytes from the beginning of the string.
  static Sought sought_readable(std::string_view text);
  static Key short_key(std::string_view text);
  // Work that only long strings need is kept out of the loops over all strings.
  [[gnu::noinline]] static Key long_key(std::string_view text);
  [[gnu::noinline]] bool is_long_one(const Slot& slot, const Sought& string) const;

  template <class Use>
  void for_each_sought(std::span<const std::string_view> strings, const Use& use) const;
  // The slot at which the search for a string begins.
  size_t first_place(const Sought& string) const { return string.hash & (slots_.size() - 1); }
  // The slot that holds the string, or the empty one where it belongs.
  size_t slot_of(const Sought& string) const;
  uint32_t insert(const Sought& string);
  [[gnu::noinline]] uint32_t append(const Sought& string, size_t place);
  void grow();

  std::string strings_;
  std::vector<uint64_t> offsets_ = {0};
  AlignedVector<Key> keys_;    // of all strings
  AlignedVector<Slot> slots_;  // by hash, linear probing; a power of two, at most half full
};

}  // namespace modelet::shard
