#include "shard/data/store/prepared_table.h"

#include <xxhash.h>

#include <algorithm>

#include "base/error.h"
#include "base/text/printable.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/read/sample_reader.h"
#include "shard/data/store/prepared.h"

namespace modelet::shard {
namespace {

PreparedHeader read_header(std::span<const std::byte> head, const std::string& name) {
  PreparedHeader header;
  if (head.size() < sizeof header)
    fail_prepared(name, "a prepared file has at least " + std::to_string(sizeof header) +
                            " bytes, this one has " + std::to_string(head.size()));
  std::memcpy(&header, head.data(), sizeof header);
  if (header.magic != kPreparedMagic)
    fail_prepared(name, "not a prepared data file (its first bytes differ)");
  if (header.byte_order != kPreparedByteOrder)
    fail_prepared(name, "written on a machine of another byte order, or damaged");
  if (header.version != kPreparedVersion)
    fail_prepared(name, "was prepared in version " + std::to_string(header.version) +
                            " of the format, and this program reads version " +
                            std::to_string(kPreparedVersion));
  if (header.sections > kMostSections || header.table_end() > head.size() ||
      header.checksum != head_checksum(head.first(header.table_end())))
    fail_prepared(name, "the header is damaged (its checksum differs)");
  if (header.rows >= kMaxCount || header.labels >= kMaxCount)
    fail_prepared(name, "a count in the header is absurdly large");
  if ((header.flags & ~kPreparedL2) != 0 || header.zero != 0)
    fail_prepared(name, "unknown flags in the header");
  return header;
}

// Where an entry of the table belongs in PreparedContents::sections, where it makes room for a block that is new.
size_t section_named(PreparedContents& contents, const SectionName& field, const std::string& name) {
  const std::string text = name_of(field);
  const auto index_of = [](std::string_view kind) {
    return static_cast<size_t>(std::ranges::find(kSectionKinds, kind, &SectionKind::name) -
                               kSectionKinds.begin());
  };
  const bool padded =
      std::ranges::all_of(std::span(field).subspan(text.size()), [](char c) { return c == 0; });
  if (const size_t section = index_of(text); padded && section < kFirstBlockSection) return section;
  const std::string block = text.substr(0, text.find('.'));
  const size_t part = index_of(std::string_view(text).substr(block.size()));
  // Samples without a part that the program does not know would be other samples.
  if (!padded || block.empty() || part == kSectionKinds.size() || printable(text) != text)
    fail_prepared(name, "has a section '" + printable(text) + "', which this program does not know");
  const auto place = static_cast<size_t>(std::ranges::find(contents.blocks, block) - contents.blocks.begin());
  if (place == contents.blocks.size()) {
    contents.blocks.push_back(block);
    contents.sections.resize(section_of(contents.blocks.size(), kBlockOffsets));
  }
  return section_of(place, kBlockOffsets) + part - kFirstBlockSection;
}

// The numbers of elements must be those that follow from the header and from each other.
void check_counts_of_sections(const PreparedContents& contents, const std::string& name) {
  const PreparedHeader& header = contents.header;
  const std::vector<SectionEntry>& sections = contents.sections;
  const auto check = [&](size_t section, uint64_t count, uint64_t limit) {
    if (sections[section].count != count || sections[section].limit != limit)
      fail_prepared(name, "its section '" + name_of(sections[section].name) +
                              "' has other elements than the header says");
  };
  for (size_t block = 0; block < contents.blocks.size(); ++block) {
    const SectionEntry& ids = sections[section_of(block, kBlockIds)];
    check(section_of(block, kBlockOffsets), header.rows + 1, 0);
    check(section_of(block, kBlockValues), ids.count, 0);
    if (ids.limit >= kMaxCount) fail_prepared(name, "has absurdly many features");
  }
  check(kLabelCounts, header.rows, 0);
  check(kFrequencies, header.labels, 0);
  check(kEncoder, std::min(sections[kEncoder].count, kMaxEncoderBytes), 0);
  check(kLabelSamples, sections[kLabelSamples].count, header.rows);
}

}  // namespace

void fail_prepared(const std::string& name, const std::string& what) {
  throw FormatError(name + ": " + what + "; prepare it again with 'modelet data prepare'");
}

uint64_t head_checksum(std::span<const std::byte> head) {
  constexpr size_t kFrom = offsetof(PreparedHeader, sections);
  return XXH3_64bits(head.data() + kFrom, head.size() - kFrom);
}

// A right checksum does not prove that the table is right: a file may be made by hand.
PreparedContents read_contents(std::span<const std::byte> head, uint64_t file_bytes,
                               const std::string& name) {
  PreparedContents contents{.header = read_header(head, name),
                            .blocks = {std::string(kFirstBlock)},
                            .sections = std::vector<SectionEntry>(section_of(1, kBlockOffsets))};
  uint64_t end = contents.header.table_end();
  size_t last = 0;
  for (uint32_t i = 0; i < contents.header.sections; ++i) {
    SectionEntry entry;
    std::memcpy(&entry, head.data() + sizeof(PreparedHeader) + i * sizeof entry, sizeof entry);
    last = section_named(contents, entry.name, name);
    SectionEntry& place = contents.sections[last];
    const std::string section = "its section '" + name_of(entry.name) + "' ";
    if (place.offset != 0 || entry.type != kind_of_section(last).type || entry.zero != 0)
      fail_prepared(name, section + "is there twice, or has another type");
    if (entry.offset != next_section(end) || entry.offset > file_bytes ||
        entry.count > (file_bytes - entry.offset) / kElementBytes[static_cast<size_t>(entry.type)])
      fail_prepared(name,
                    section +
                        "is not where the table must put it, or ends behind the file; it is cut off or was "
                        "written to");
    end = entry.offset + entry.bytes();
    place = entry;
  }
  if (end != file_bytes)
    fail_prepared(name, "has " + std::to_string(file_bytes) + " bytes, its table says " +
                            std::to_string(end) + "; it is cut off or was written to");
  for (size_t i = 0; i < contents.sections.size(); ++i)
    if (contents.sections[i].offset == 0)
      fail_prepared(name, "a section '" + std::string(kind_of_section(i).name) + "' is missing");
  if (last != kLabelSamples)
    fail_prepared(name, "its last section is not '" + std::string(kSectionKinds[kLabelSamples].name) + "'");
  check_counts_of_sections(contents, name);
  return contents;
}

}  // namespace modelet::shard
