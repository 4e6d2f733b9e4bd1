// The prepared format: sparse samples in one memory-mapped binary file. docs/data_format.md gives it byte by
// byte.
//
//   PreparedWriter   samples in, one after the other -> file (appears whole or not at all); memory does not
//   grow with the data parse_prepared   bytes -> views of the sections, checked
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

namespace modelet::shard {

inline constexpr uint32_t kPreparedVersion = 1;

struct PreparedView {
  uint64_t rows = 0, features = 0, labels = 0;
  Normalize normalize = Normalize::kNone;
  std::span<const uint64_t> feature_offsets, label_offsets;
  std::span<const uint32_t> feature_ids, label_ids;
  std::span<const float> values;
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
  void finish();

  uint64_t rows() const { return rows_; }

 private:
  class Spool;
  static constexpr size_t kSections = 5;  // in the order of the file, see prepared.cc

  std::filesystem::path path_;
  uint64_t features_, labels_, rows_ = 0, nonzeros_ = 0, label_entries_ = 0;
  Normalize normalize_;
  std::array<std::unique_ptr<Spool>, kSections> spools_;
};

// Called now and then with the number of samples done, bytes of text read, and the part of the input read, in
// [0, 1].
using PrepareProgress = std::function<void(uint64_t rows, uint64_t bytes, double fraction)>;

// XMC text (plain, .xz, .gz; shard/data/xmc_reader.h) -> prepared file.
void prepare_text(const std::filesystem::path& text, const std::filesystem::path& prepared,
                  Normalize normalize, const PrepareProgress& progress = {});

}  // namespace modelet::shard
