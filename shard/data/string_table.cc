#include "shard/data/string_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"

namespace modelet::shard {

StringTable::StringTable(std::span<const uint64_t> offsets, std::string_view strings,
                         const std::string& origin)
    : StringTable() {
  bool good =
      !offsets.empty() && offsets.front() == 0 && offsets.back() == strings.size() && offsets.size() < kNone;
  for (size_t i = 1; good && i < offsets.size(); ++i) {
    good = offsets[i - 1] <= offsets[i] && offsets[i] <= strings.size();
    good = good && insert(strings.substr(offsets[i - 1], offsets[i] - offsets[i - 1])) == i - 1;
  }
  if (!good) throw FormatError(origin + ": damaged: its names overlap or are not distinct");
}

size_t StringTable::slot_of(std::string_view text) const {
  size_t slot = XXH3_64bits(text.data(), text.size()) & (slots_.size() - 1);
  while (slots_[slot] != kNone && at(slots_[slot]) != text) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

uint32_t StringTable::find(std::string_view text) const { return slots_[slot_of(text)]; }

uint32_t StringTable::insert(std::string_view text) {
  const size_t slot = slot_of(text);
  if (slots_[slot] != kNone) return slots_[slot];
  MODELET_CHECK(size() + 1 < kNone);
  const auto id = static_cast<uint32_t>(size());
  slots_[slot] = id;
  strings_ += text;
  offsets_.push_back(strings_.size());
  if (2 * size() > slots_.size()) grow();
  return id;
}

void StringTable::grow() {
  slots_.assign(2 * slots_.size(), kNone);
  for (uint32_t id = 0; id < size(); ++id) slots_[slot_of(at(id))] = id;
}

}  // namespace modelet::shard
