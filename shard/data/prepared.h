// The prepared format: sparse samples in one memory-mapped binary file. docs/data_format.md gives it byte by
// byte.
//
//   PreparedWriter   samples in, one after the other -> file (appears whole or not at all); memory does not
//                    grow with the data
//   parse_prepared   bytes -> views of the sections, checked
//   prepare_text     text -> file, through any SampleReader
//
// One thread uses a writer. Views are immutable and live as long as the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/experiment.h"
#include "shard/data/sample.h"
#include "shard/data/sample_reader.h"

namespace modelet::shard {

inline constexpr uint32_t kPreparedVersion = 2;

struct PreparedView {
  uint64_t rows = 0, features = 0, labels = 0;
  Normalize normalize = Normalize::kNone;
  std::span<const uint64_t> feature_offsets, label_offsets;
  std::span<const uint32_t> feature_ids, label_ids;
  std::span<const float> values;
  std::span<const std::byte> encoder;  // state of the encoder that read the text (shard/data/encoder.h)
  uint64_t encoder_checksum = 0;       // XXH3-64 of it
  uint64_t unknown_labels = 0;         // occurrences of labels that the encoder did not know
};

// Whether a file starts like a prepared file. Throws Error if it cannot be opened.
bool is_prepared(const std::filesystem::path& path);

// Checks the header, the sections' places, offsets (monotone, in bounds) and ids (strictly ascending within a
// sample, in range), so that nobody who walks the views can leave them. `verify` also compares the checksum
// of each section. `bytes` must be 8-byte aligned. Throws FormatError that starts with `name`.
PreparedView parse_prepared(std::span<const std::byte> bytes, const std::string& name, bool verify);

class PreparedWriter {
 public:
  // The sections grow in unlinked files beside `path`; finish() joins them. Throws Error if the disk does not
  // let it.
  PreparedWriter(const std::filesystem::path& path, uint64_t features, uint64_t labels, Normalize normalize);
  PreparedWriter(const PreparedWriter&) = delete;
  PreparedWriter& operator=(const PreparedWriter&) = delete;
  ~PreparedWriter();

  // Appends a sample: ids strictly ascending and in range, values finite. Scales its values if the file is
  // normalised (a sample whose values are all zero stays as it is).
  void add(const Sample& sample);
  // What the file says about its origin besides: empty and 0 for XMC text.
  void set_encoder(std::span<const std::byte> state, uint64_t unknown_labels);
  void finish();

  uint64_t rows() const { return rows_; }

 private:
  class Spool;
  static constexpr size_t kSections = 6;  // in the order of the file, see prepared.cc

  std::filesystem::path path_;
  uint64_t features_, labels_, rows_ = 0, nonzeros_ = 0, label_entries_ = 0, unknown_labels_ = 0;
  Normalize normalize_;
  std::array<std::unique_ptr<Spool>, kSections> spools_;
};

// Called now and then with the number of samples done, bytes of text read, and the part of the input read, in
// [0, 1].
using PrepareProgress = std::function<void(uint64_t rows, uint64_t bytes, double fraction)>;

// All samples of `reader` -> prepared file. `encoder`: the state with which it reads, empty for XMC text.
void prepare_text(SampleReader& reader, std::span<const std::byte> encoder,
                  const std::filesystem::path& prepared, Normalize normalize,
                  const PrepareProgress& progress = {});

}  // namespace modelet::shard
