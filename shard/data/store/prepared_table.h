// The beginning of a prepared file (docs/data_format.md): its header, and the table that says which sections
// it has, of what, and where. For the code that reads and writes such files (shard/data/store/prepared.h). Plain
// values and pure functions.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/array/aligned.h"

namespace modelet::shard {

static_assert(std::endian::native == std::endian::little,
              "the prepared format is the memory of a little-endian machine");

// Not text in any encoding, and changed by a transfer that rewrites line ends.
inline constexpr std::array<unsigned char, 8> kPreparedMagic = {0x89, 'M', 'L', 'T', '\r', '\n', 0x1a, '\n'};
inline constexpr uint32_t kPreparedByteOrder = 0x01020304;
inline constexpr uint32_t kPreparedL2 = 1;
inline constexpr size_t kLongestBlockName = 16;

enum class ElementType : uint32_t { kByte = 1, kU32, kU64, kF32 };
inline constexpr std::array<uint64_t, 5> kElementBytes = {0, 1, 4, 8, 4};  // by ElementType

// Sections that there are once. Those of the blocks of the input follow, three for each block.
enum Section : size_t {
  kLabelCounts,  // [rows] labels of a sample
  kFrequencies,  // [labels] samples of the label of a neuron
  kEncoder,
  kLabelSamples,  // the samples of each neuron's label
  kFirstBlockSection
};
enum BlockSection : size_t {
  kBlockOffsets,  // [rows + 1] into the next two
  kBlockIds,
  kBlockValues
};
inline constexpr size_t kBlockSections = 3;
constexpr size_t section_of(size_t block, BlockSection which) {
  return kFirstBlockSection + kBlockSections * block + which;
}
struct SectionKind {
  std::string_view name;  // of a block's section: what follows the block's name
  ElementType type;
};
inline constexpr std::array<SectionKind, kFirstBlockSection + kBlockSections> kSectionKinds = {
    {{"labels.counts", ElementType::kU32},
     {"labels.frequencies", ElementType::kU32},
     {"encoder", ElementType::kByte},
     {"labels.samples", ElementType::kU32},
     {".offsets", ElementType::kU64},
     {".ids", ElementType::kU32},
     {".values", ElementType::kF32}}};

inline const SectionKind& kind_of_section(size_t section) {
  return kSectionKinds[section < kFirstBlockSection
                           ? section
                           : kFirstBlockSection + (section - kFirstBlockSection) % kBlockSections];
}

using SectionName = std::array<char, 24>;  // filled with zeros

inline std::string name_of(const SectionName& name) {
  return {name.data(), ::strnlen(name.data(), name.size())};
}

// A row of the table of sections, which follows the header.
struct SectionEntry {
  SectionName name;
  ElementType type;
  uint32_t zero;
  uint64_t count;  // of elements
  uint64_t limit;  // ids lie below it; 0: these are no ids
  uint64_t offset;
  uint64_t checksum;  // XXH3-64

  uint64_t bytes() const { return count * kElementBytes[static_cast<size_t>(type)]; }
};
static_assert(sizeof(SectionEntry) == 64);

// The first bytes of the file.
struct PreparedHeader {
  std::array<unsigned char, 8> magic;
  uint32_t version, byte_order;
  uint64_t checksum;  // XXH3-64 of everything below, and of the table
  uint32_t sections, flags;
  uint64_t rows, labels, unknown_labels, zero;

  uint64_t table_end() const { return sizeof(PreparedHeader) + sections * sizeof(SectionEntry); }
};
static_assert(sizeof(PreparedHeader) == 64);

// A header and its table, checked.
struct PreparedContents {
  PreparedHeader header;
  std::vector<std::string> blocks;     // their names, the first block first
  std::vector<SectionEntry> sections;  // by Section and section_of()

  template <class T>
  std::span<const T> of(std::span<const std::byte> file, size_t section) const {
    return {reinterpret_cast<const T*>(file.data() + sections[section].offset), sections[section].count};
  }
};

// Throws FormatError that also says what to do.
[[noreturn]] void fail_prepared(const std::string& name, const std::string& what);

// `head`: header and table. What PreparedHeader::checksum must be.
uint64_t head_checksum(std::span<const std::byte> head);

// Where the section begins behind one that ends at `end`.
constexpr uint64_t next_section(uint64_t end) { return (end + kCacheLine - 1) / kCacheLine * kCacheLine; }

// `head`: the first kPreparedHeadBytes of the file, or more, or all. Throws FormatError that starts with `name`.
PreparedContents read_contents(std::span<const std::byte> head, uint64_t file_bytes, const std::string& name);

}  // namespace modelet::shard
