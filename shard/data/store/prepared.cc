#include "shard/data/store/prepared.h"

#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/system/file.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/store/label_spread.h"
#include "shard/data/store/prepared_table.h"
#include "shard/kernels/elementwise.h"

namespace modelet::shard {

namespace {

// The same for the same samples, whatever the version of the format.
uint64_t fingerprint_of(const PreparedContents& contents) {
  const PreparedHeader& header = contents.header;
  const std::vector<SectionEntry>& sections = contents.sections;
  std::vector<uint64_t> facts = {header.rows, sections[section_of(0, kBlockIds)].limit, header.labels,
                                 sections[kLabelSamples].checksum};
  const auto add_checksums = [&](size_t block) {
    for (const BlockSection which : {kBlockOffsets, kBlockIds, kBlockValues})
      facts.push_back(sections[section_of(block, which)].checksum);
  };
  add_checksums(0);
  facts.push_back(sections[kLabelCounts].checksum);
  facts.push_back(sections[kFrequencies].checksum);
  for (size_t block = 1; block < contents.blocks.size(); ++block) {
    facts.push_back(XXH3_64bits(contents.blocks[block].data(), contents.blocks[block].size()));
    facts.push_back(sections[section_of(block, kBlockIds)].limit);
    add_checksums(block);
  }
  return XXH3_64bits(facts.data(), facts.size() * sizeof(uint64_t));
}

void check_offsets(std::span<const uint64_t> offsets, uint64_t entries, const std::string& name) {
  bool monotone = offsets.front() == 0 && offsets.back() == entries;
  for (size_t i = 1; i < offsets.size(); ++i) monotone &= offsets[i - 1] <= offsets[i];
  if (!monotone) fail_prepared(name, "damaged: the samples' offsets do not ascend");
}

// Counts are below 2^32 and fewer than 2^31: their sum does not wrap.
void check_counts(std::span<const uint32_t> counts, uint64_t entries, const char* what,
                  const std::string& name) {
  uint64_t sum = 0;
  for (const uint32_t count : counts) sum += count;
  if (sum != entries) fail_prepared(name, std::string("damaged: the counts of ") + what + " are wrong");
}

void check_ids(const BlockView& block, const std::string& name) {
  const bool ascend = block.shape.name == kFirstBlock;
  for (size_t row = 0; row + 1 < block.offsets.size(); ++row) {
    const auto of_row = block.of(row).features;
    if (of_row.empty()) continue;
    bool good = (ascend ? of_row.back() : std::ranges::max(of_row)) < block.shape.features;
    for (size_t i = 1; ascend && i < of_row.size(); ++i) good &= of_row[i - 1] < of_row[i];
    if (!good)
      fail_prepared(name, "damaged: the " + block.shape.name + " of sample " + std::to_string(row) +
                              " do not ascend or are not below " + std::to_string(block.shape.features));
  }
}

// `neurons` ascend. They come from a run's plan, and the file may not be the one that the plan was made for.
void require_neurons(std::span<const NeuronRange> neurons, uint64_t labels, const std::string& name) {
  uint64_t before = 0;
  for (const NeuronRange& range : neurons) {
    MODELET_CHECK(before <= range.begin && range.begin <= range.end);
    before = range.end;
  }
  if (before > labels)
    throw Error(name + ": has " + std::to_string(labels) + " labels, the run was planned for " +
                std::to_string(before) + " or more: it is not the data of that run");
}

void check_values(std::span<const uint64_t> offsets, std::span<const float> values, const std::string& name) {
  const size_t at = kernels::first_not_finite(values.data(), values.size());
  if (at == values.size()) return;
  const auto row = std::ranges::upper_bound(offsets, at) - offsets.begin() - 1;
  fail_prepared(name, "damaged: sample " + std::to_string(row) + " has the value " +
                          std::to_string(values[at]) + ", which is no finite number");
}

}  // namespace

bool is_prepared(const std::filesystem::path& path) {
  require_regular_file(path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(errno_text(path.string()));
  std::array<char, kPreparedMagic.size()> first{};
  file.read(first.data(), first.size());
  return std::memcmp(first.data(), kPreparedMagic.data(), kPreparedMagic.size()) == 0;
}

PreparedView parse_prepared(std::span<const std::byte> bytes, const std::string& name, bool verify,
                            bool whole) {
  const PreparedContents contents = read_contents(bytes, bytes.size(), name);
  const auto& [header, blocks, sections] = contents;
  if (verify) {
    for (size_t i = 0; i < sections.size(); ++i)
      if ((whole || i != kLabelSamples) &&
          XXH3_64bits(bytes.data() + sections[i].offset, sections[i].bytes()) != sections[i].checksum)
        fail_prepared(name,
                      "damaged: the checksum of the section '" + name_of(sections[i].name) + "' differs");
  }
  PreparedView view;
  view.rows = header.rows;
  view.labels = header.labels;
  view.label_entries = sections[kLabelSamples].count;
  view.normalize = (header.flags & kPreparedL2) != 0 ? Normalize::kL2 : Normalize::kNone;
  view.label_counts = contents.of<uint32_t>(bytes, kLabelCounts);
  view.frequencies = contents.of<uint32_t>(bytes, kFrequencies);
  view.label_samples = contents.of<uint32_t>(bytes, kLabelSamples);
  view.encoder = contents.of<std::byte>(bytes, kEncoder);
  view.encoder_checksum = view.encoder.empty() ? 0 : sections[kEncoder].checksum;
  view.unknown_labels = header.unknown_labels;
  view.fingerprint = fingerprint_of(contents);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t ids = section_of(i, kBlockIds);
    const BlockView block = {.shape = {blocks[i], sections[ids].limit},
                             .offsets = contents.of<uint64_t>(bytes, section_of(i, kBlockOffsets)),
                             .ids = contents.of<uint32_t>(bytes, ids),
                             .values = contents.of<float>(bytes, section_of(i, kBlockValues))};
    check_offsets(block.offsets, block.ids.size(), name);
    check_ids(block, name);
    check_values(block.offsets, block.values, name);
    if (i == 0)
      view.features = block;
    else
      view.others.push_back(block);
  }
  check_counts(view.label_counts, view.label_entries, "labels of samples", name);
  check_counts(view.frequencies, view.label_entries, "samples of labels", name);
  return view;
}

ByteRange label_section(std::span<const std::byte> head, uint64_t file_bytes, const std::string& name) {
  return {read_contents(head, file_bytes, name).sections[kLabelSamples].offset, file_bytes};
}

std::vector<ByteRange> bytes_of_labels(std::span<const std::byte> file, std::span<const NeuronRange> neurons,
                                       const std::string& name) {
  const PreparedContents contents = read_contents(file, file.size(), name);
  const SectionEntry& samples = contents.sections[kLabelSamples];
  const auto frequencies = contents.of<uint32_t>(file, kFrequencies);
  check_counts(frequencies, samples.count, "samples of labels", name);
  std::vector<ByteRange> ranges;
  uint64_t neuron = 0, at = samples.offset;
  require_neurons(neurons, contents.header.labels, name);
  const auto skip_to = [&](uint64_t end) {
    for (; neuron < end; ++neuron) at += frequencies[neuron] * sizeof(uint32_t);
    return at;
  };
  for (const NeuronRange& range : neurons) {
    const uint64_t begin = skip_to(range.begin), end = skip_to(range.end);
    if (begin < end) ranges.push_back({begin, end});
  }
  return ranges;
}

SampleLabels::SampleLabels(const PreparedView& view, std::span<const NeuronRange> neurons,
                           const std::string& name)
    : offsets_(view.rows + 1) {
  if (neurons.empty()) return;
  const auto wrong = [&](const LabelSpread& spread, uint64_t neuron) {
    fail_prepared(name, "damaged: the samples of label " +
                            std::to_string(spread.label(static_cast<uint32_t>(neuron))) +
                            " do not ascend or are not below " + std::to_string(view.rows));
  };
  require_neurons(neurons, view.labels, name);
  const LabelSpread spread(view.labels);
  constexpr uint64_t kNotHeld = ~uint64_t{0};
  std::vector<uint64_t> places(view.labels, kNotHeld);  // where a neuron's samples begin
  uint64_t neuron = 0, at = 0, held = 0;
  for (const NeuronRange& range : neurons) {
    for (; neuron < range.begin; ++neuron) at += view.frequencies[neuron];
    held += range.end - range.begin;
    for (; neuron < range.end; ++neuron) {
      const auto samples = view.label_samples.subspan(at, view.frequencies[neuron]);
      if (samples.empty()) continue;
      bool good = samples.back() < view.rows;
      for (size_t i = 1; i < samples.size(); ++i) good &= samples[i - 1] < samples[i];
      if (!good) wrong(spread, neuron);
      for (const uint32_t sample : samples) ++offsets_[sample + 1];
      places[neuron] = at;
      at += samples.size();
    }
  }
  for (size_t row = 0; row < view.rows; ++row) {
    const uint64_t here = offsets_[row + 1], all = view.label_counts[row];
    if (held == view.labels ? here != all : here > all)
      fail_prepared(name,
                    "damaged: sample " + std::to_string(row) + " has another number of labels than it says");
    offsets_[row + 1] += offsets_[row];
  }
  // Filled in the order of labels, so that the labels of a sample ascend. The end of each sample moves until
  // it reaches the beginning of the next one.
  labels_.resize(offsets_.back());
  for (uint32_t label = 0; label < view.labels; ++label) {
    const uint32_t of_label = spread.neuron(label);
    if (places[of_label] == kNotHeld) continue;
    for (const uint32_t sample : view.label_samples.subspan(places[of_label], view.frequencies[of_label]))
      labels_[offsets_[sample]++] = label;
  }
  std::shift_right(offsets_.begin(), offsets_.end(), 1);
  offsets_.front() = 0;
}

void SampleLabels::add(std::vector<LabelEntry>& entries) {
  std::ranges::sort(entries);
  std::vector<uint32_t> merged;
  merged.reserve(labels_.size() + entries.size());
  auto next = entries.begin();
  uint64_t before = 0;  // where the sample's labels began
  for (size_t sample = 0; sample + 1 < offsets_.size(); ++sample) {
    const auto old_end = labels_.begin() + static_cast<std::ptrdiff_t>(offsets_[sample + 1]);
    const auto middle = static_cast<std::ptrdiff_t>(merged.size() + offsets_[sample + 1] - before);
    merged.insert(merged.end(), labels_.begin() + static_cast<std::ptrdiff_t>(before), old_end);
    before = offsets_[sample + 1];
    const auto begin = merged.begin() + static_cast<std::ptrdiff_t>(offsets_[sample]);
    for (; next != entries.end() && next->sample == sample; ++next) merged.push_back(next->label);
    std::inplace_merge(begin, merged.begin() + middle, merged.end());
    offsets_[sample + 1] = merged.size();
  }
  MODELET_CHECK(next == entries.end());
  labels_ = std::move(merged);
}

void SampleLabels::keep(const LabelSpread& spread) {
  uint64_t kept = 0, next = 0;  // `next`: where the sample's labels began
  for (size_t sample = 0; sample + 1 < offsets_.size(); ++sample) {
    const uint64_t end = offsets_[sample + 1];
    for (; next < end; ++next)
      if (spread.neuron(labels_[next]) != LabelSpread::kNoNeuron) labels_[kept++] = labels_[next];
    offsets_[sample + 1] = kept;
  }
  labels_.resize(kept);
  labels_.shrink_to_fit();
}

size_t SampleLabels::memory_bytes() const {
  return offsets_.capacity() * sizeof(uint64_t) + labels_.capacity() * sizeof(uint32_t);
}

float scale_of(const Sample& sample, Normalize normalize) {
  if (normalize == Normalize::kNone) return 1;
  double squares = 0;
  for (const float value : sample.values) squares += double{value} * double{value};
  const float inverse = inverse_length(squares);
  return inverse > 0 ? inverse : 1;
}

}  // namespace modelet::shard
