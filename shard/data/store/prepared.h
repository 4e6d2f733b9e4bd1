// The prepared format: sparse samples in one memory-mapped binary file. docs/data_format.md gives it byte by
// byte.
//
//     PreparedWriter   writes samples, one after the other, to a file that appears whole or not at all
//     parse_prepared   bytes -> views of the sections, checked
//     SampleLabels     the labels of each sample, from a file that lists the samples of each label
//     prepare_text     text -> file, through any SampleReader
//
// Labels lie in the file by label, in the order of output neurons (shard/data/store/label_spread.h). The last
// section lists the samples of each label. A node that holds a range of neurons needs only a part of that
// section, and the rest of the section may be missing.
//
// One thread uses a writer. The memory of a writer grows only with the number of labels, and with the number
// of samples of the most frequent one. Views are immutable and live as long as the bytes.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/array/prefetch.h"
#include "base/experiment/experiment.h"
#include "base/system/file.h"
#include "shard/data/read/sample.h"
#include "shard/data/read/sample_reader.h"
#include "shard/data/store/label_spread.h"

namespace modelet::shard {

inline constexpr uint32_t kPreparedVersion = 4;

// Output neurons [begin, end).
struct NeuronRange {
  uint64_t begin = 0, end = 0;
};

// A block of the input of all samples.
struct BlockView {
  BlockShape shape;
  std::span<const uint64_t> offsets;  // [rows + 1] into the next two
  std::span<const uint32_t> ids;
  std::span<const float> values;

  BlockSample of(size_t row) const {
    const uint64_t first = offsets[row], count = offsets[row + 1] - first;
    return {ids.subspan(first, count), values.subspan(first, count)};
  }
  // For loops over rows (base/array/prefetch.h). prefetch() requests a sample from memory. To find it,
  // prefetch() reads its place, which prefetch_place() requests earlier.
  void prefetch(size_t row) const {
    const BlockSample sample = of(row);
    prefetch_bytes(sample.features.data(), sample.features.size_bytes());
    prefetch_bytes(sample.values.data(), sample.values.size_bytes());
  }
  void prefetch_place(size_t row) const { prefetch_bytes(&offsets[row], 2 * sizeof(uint64_t)); }
};

struct PreparedView {
  uint64_t rows = 0, labels = 0, label_entries = 0;
  Normalize normalize = Normalize::kNone;  // of the first block
  BlockView features;                      // the first block
  std::vector<BlockView> others;
  std::span<const uint32_t> label_counts;   // [rows] labels of a sample
  std::span<const uint32_t> frequencies;    // [labels] samples that have the label of a neuron
  std::span<const uint32_t> label_samples;  // samples of neuron 0's label, of neuron 1's, ...; not checked
  std::span<const std::byte>
      encoder;                    // state of the encoder that read the text (shard/data/encode/encoder.h)
  uint64_t encoder_checksum = 0;  // XXH3-64 of it
  uint64_t unknown_labels = 0;    // occurrences of labels that the encoder did not know
  // Identifies the samples by their number, features, values and labels. It follows from the checksums in the
  // table. So it is known without reading the file, even if the file lacks some labels.
  uint64_t fingerprint = 0;
};

// Whether a file starts like a prepared file. Throws Error as require_regular_file(), or if it cannot be
// opened.
bool is_prepared(const std::filesystem::path& path);

// Checks the header, the table of sections, offsets (monotone, in bounds), ids (in range, in the first block
// strictly ascending within a sample) and counts of labels, so that walking the views cannot leave them; SampleLabels checks
// what it reads of the last section. `verify` also compares the checksum of each section, but that of the
// last one only if it is there in full: `whole`. `bytes` must be 8-byte aligned. Throws FormatError that
// starts with `name`.
PreparedView parse_prepared(std::span<const std::byte> bytes, const std::string& name, bool verify,
                            bool whole = true);

// Bytes [begin, end) of a file.
struct ByteRange {
  uint64_t begin = 0, end = 0;
};
// The place of the last section in a file of `file_bytes` bytes, of which at least the first kPreparedHeadBytes
// are given, or all. Every reader needs everything before that section. Throws as parse_prepared.
inline constexpr size_t kMostSections = 63, kPreparedHeadBytes = 64 * (1 + kMostSections);
ByteRange label_section(std::span<const std::byte> head, uint64_t file_bytes, const std::string& name);
// The place of the labels of these neurons (ascending) in that section. `file`: the whole file, of which only
// what lies before the section is read. Throws as parse_prepared, and Error if there are fewer neurons.
std::vector<ByteRange> bytes_of_labels(std::span<const std::byte> file, std::span<const NeuronRange> neurons,
                                       const std::string& name);

// A label of a sample.
struct LabelEntry {
  uint32_t sample = 0, label = 0;
  friend auto operator<=>(const LabelEntry&, const LabelEntry&) = default;
};

// The labels of each sample (CSR), in memory: 8 bytes per sample, and 4 for each of its labels.
class SampleLabels {
 public:
  SampleLabels() = default;
  // A copy of labels that are in this form already: ascending for each sample, offsets [rows + 1].
  SampleLabels(std::span<const uint64_t> offsets, std::span<const uint32_t> labels)
      : offsets_(offsets.begin(), offsets.end()), labels_(labels.begin(), labels.end()) {}
  // Reads the labels of these neurons (ascending, not overlapping) and nothing else of the last section.
  // Error if there are fewer neurons. Throws FormatError that starts with `name` if samples are out of range,
  // do not ascend within a label, or have another number of labels than the file says (more, if these are not
  // all neurons).
  SampleLabels(const PreparedView& view, std::span<const NeuronRange> neurons, const std::string& name);

  // Ascending. Samples [0, rows).
  std::span<const uint32_t> of(size_t sample) const {
    return std::span(labels_).subspan(offsets_[sample], offsets_[sample + 1] - offsets_[sample]);
  }
  const uint64_t* place(size_t sample) const { return &offsets_[sample]; }  // of its two offsets, to prefetch
  // Adds labels that a sample did not have. Samples in range; sorts `entries`.
  void add(std::vector<LabelEntry>& entries);
  // Removes all labels that have no neuron.
  void keep(const LabelSpread& spread);
  size_t memory_bytes() const;

 private:
  std::vector<uint64_t> offsets_;  // [rows + 1]
  std::vector<uint32_t> labels_;
};

// The factor by which the values of a sample are normalised; 1 for a sample whose values are all zero, or
// together shorter than kSmallestLength.
float scale_of(const Sample& sample, Normalize normalize);

class PreparedWriter {
 public:
  // The sections grow in unlinked files beside `path`. finish() joins them and sorts labels by neuron, about
  // `sorted_at_once` entries at a time; 0: kSortedAtOnce or a sixteenth of all, whichever is more. Throws Error
  // if the disk fails. `existing`: see AtomicFile.
  static constexpr uint64_t kSortedAtOnce = uint64_t{16} << 20;  // 64 MiB
  PreparedWriter(const std::filesystem::path& path, uint64_t features, uint64_t labels, Normalize normalize,
                 Existing existing = Existing::kReplace, uint64_t sorted_at_once = 0,
                 std::vector<BlockShape> others = {});
  PreparedWriter(const PreparedWriter&) = delete;
  PreparedWriter& operator=(const PreparedWriter&) = delete;
  ~PreparedWriter();

  // Appends a sample: ids in range, in the first block strictly ascending; values finite. Scales the values of
  // the first block if the file is normalised (a sample whose values are all zero stays as it is). `others`: its
  // parts in the other blocks.
  void add(const Sample& sample, std::span<const BlockSample> others = {});
  // What the file also says about its origin; XMC text: empty and 0.
  void set_encoder(std::span<const std::byte> state, uint64_t unknown_labels);
  void finish();

  uint64_t rows() const { return rows_; }

 private:
  class Spool;

  void add_to_block(size_t block, const BlockSample& sample, float scale);
  void sort_by_label();

  std::filesystem::path path_;
  std::vector<BlockShape> blocks_;
  std::vector<uint64_t> nonzeros_;  // of each block
  uint64_t labels_, sorted_at_once_;
  uint64_t rows_ = 0, label_entries_ = 0, unknown_labels_ = 0;
  Normalize normalize_;
  Existing existing_;
  std::vector<std::unique_ptr<Spool>> spools_;  // of each section
  std::unique_ptr<Spool> entries_;              // LabelEntry, by sample
  std::vector<LabelEntry> of_sample_;           // kept for its memory
};

// Called from time to time with the number of samples done, the bytes of text read, and the part of the input
// read, in [0, 1].
using PrepareProgress = std::function<void(uint64_t rows, uint64_t bytes, double fraction)>;

// Writes all samples of `reader` to a prepared file. `encoder`: the state with which it reads, empty for XMC
// text.
void prepare_text(SampleReader& reader, std::span<const std::byte> encoder,
                  const std::filesystem::path& prepared, Normalize normalize,
                  const PrepareProgress& progress = {}, Existing existing = Existing::kReplace);

}  // namespace modelet::shard
