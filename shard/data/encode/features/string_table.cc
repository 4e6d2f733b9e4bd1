#include "shard/data/encode/features/string_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <random>

#include "base/array/prefetch.h"
#include "base/error.h"
#include "shard/data/read/line_reader.h"

namespace modelet::shard {
namespace {

constexpr size_t kKeyBytes = 16;
constexpr size_t kLongest = kKeyBytes - 1;  // longest string that its key holds whole
constexpr int kLastByte = 56;               // where the last byte of the key begins in Key::high, in bits
constexpr uint64_t kLong = 0xff;            // value of that byte for longer strings
static_assert(std::endian::native == std::endian::little && kReadableBehind >= kKeyBytes);

// From byte kKeyBytes - n on: n bytes of ones, then kKeyBytes - n zeros.
constexpr auto kMask = [] {
  std::array<uint8_t, 2 * kKeyBytes> mask{};
  for (size_t i = 0; i < kKeyBytes; ++i) mask[i] = 0xff;
  return mask;
}();

// Drawn anew by each process. With hashes that are known, somebody could prepare names that all fall into one
// slot, each of which is then compared with all others.
struct Secrets {
  std::random_device device;
  uint64_t low = draw(), high = draw(), seed = draw();
  uint64_t draw() { return uint64_t{device()} << 32 | device(); }
};
const Secrets kSecrets;

}  // namespace

StringTable::Sought StringTable::sought(std::string_view text) {
  if (text.size() > kLongest) return sought_readable(text);
  std::array<char, kKeyBytes> readable{};
  std::copy(text.begin(), text.end(), readable.begin());
  Sought result = sought_readable({readable.data(), text.size()});
  result.text = text;
  return result;
}

// The hash combines both halves of the product of the key's halves: one multiplication (as in wyhash).
inline StringTable::Sought StringTable::sought_readable(std::string_view text) {
  const Key key = text.size() > kLongest ? long_key(text) : short_key(text);
  const auto product = static_cast<unsigned __int128>(key.low ^ kSecrets.low) * (key.high ^ kSecrets.high);
  return {text, key, static_cast<uint32_t>(product >> 64) ^ static_cast<uint32_t>(product)};
}

inline StringTable::Key StringTable::short_key(std::string_view text) {
  uint64_t bytes[2], mask[2];
  std::memcpy(bytes, text.data(), sizeof bytes);
  std::memcpy(mask, &kMask[kKeyBytes - text.size()], sizeof mask);
  return {bytes[0] & mask[0], (bytes[1] & mask[1]) | text.size() << kLastByte};
}

StringTable::Key StringTable::long_key(std::string_view text) {
  return {XXH3_64bits_withSeed(text.data(), text.size(), kSecrets.seed), text.size() | kLong << kLastByte};
}

bool StringTable::is_long_one(const Slot& slot, const Sought& string) const {
  return at(slot.id) == string.text;
}

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

inline size_t StringTable::slot_of(const Sought& string) const {
  const size_t last = slots_.size() - 1;
  for (size_t place = string.hash & last;; place = (place + 1) & last) {
    const Slot slot = slots_[place];
    if (slot.id == kNone) return place;
    if (slot.hash != string.hash || keys_[slot.id] != string.key) continue;
    if (string.text.size() <= kLongest || is_long_one(slot, string)) return place;
  }
}

// Many strings are looked up at once: first all slots are requested from memory, then all keys.
template <class Use>
inline void StringTable::for_each_sought(std::span<const std::string_view> strings, const Use& use) const {
  constexpr size_t kTogether = 64;
  std::array<Sought, kTogether> sought;
  for (size_t from = 0; from < strings.size(); from += kTogether) {
    const size_t count = std::min(kTogether, strings.size() - from);
    for (size_t i = 0; i < count; ++i) {
      sought[i] = sought_readable(strings[from + i]);
      prefetch_bytes(slots_.data() + first_place(sought[i]), sizeof(Slot));
    }
    for (size_t i = 0; i < count; ++i) {
      const size_t id = slots_[first_place(sought[i])].id;
      prefetch_bytes(keys_.data() + std::min(id, keys_.size()), sizeof(Key));
    }
    for (size_t i = 0; i < count; ++i) use(from + i, sought[i]);
  }
}

uint32_t StringTable::find(std::string_view text) const { return slots_[slot_of(sought(text))].id; }

void StringTable::find(std::span<const std::string_view> strings, std::span<uint32_t> ids) const {
  for_each_sought(strings, [&](size_t i, const Sought& string) { ids[i] = slots_[slot_of(string)].id; });
}

uint32_t StringTable::insert(std::string_view text) { return insert(sought(text)); }

void StringTable::insert(std::span<const std::string_view> strings, std::span<uint32_t> ids) {
  for_each_sought(strings, [&](size_t i, const Sought& string) { ids[i] = insert(string); });
}

inline uint32_t StringTable::insert(const Sought& string) {
  const size_t place = slot_of(string);
  return slots_[place].id != kNone ? slots_[place].id : append(string, place);
}

uint32_t StringTable::append(const Sought& string, size_t place) {
  MODELET_CHECK(size() + 1 < kNone);
  const auto id = static_cast<uint32_t>(size());
  slots_[place] = {string.hash, id};
  strings_ += string.text;
  offsets_.push_back(strings_.size());
  keys_.push_back(string.key);
  if (2 * size() > slots_.size()) grow();
  return id;
}

void StringTable::grow() {
  AlignedVector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id == kNone) continue;
    size_t place = slot.hash & (slots_.size() - 1);
    while (slots_[place].id != kNone) place = (place + 1) & (slots_.size() - 1);
    slots_[place] = slot;
  }
}

}  // namespace modelet::shard
