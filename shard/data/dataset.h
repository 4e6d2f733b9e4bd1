// Dataset: sparse samples with labels, in a memory-mapped prepared file (docs/data_format.md).
// Immutable after opening; any thread may read it. Text is prepared once, through a cache, and never kept in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/experiment.h"
#include "base/file.h"

namespace modelet::shard {

// The sample's non-zero features (ascending ids), their values, and its labels (ascending ids).
struct Sample {
  std::span<const uint32_t> features;
  std::span<const float> values;
  std::span<const uint32_t> labels;
};

class Dataset {
 public:
  // Opens a prepared file; checks magic, version, sizes, and that every id is in range (FormatError otherwise).
  // `verify` also compares the checksums of all sections (reads the whole file).
  static Dataset open(const std::filesystem::path& path, bool verify = false);

  size_t rows() const { return rows_; }
  size_t features() const { return features_; }  // dimension: ids are in [0, features)
  size_t labels() const { return labels_; }
  size_t nonzeros() const { return feature_ids_.size(); }
  size_t label_entries() const { return label_ids_.size(); }
  Sample sample(size_t row) const;

 private:
  MappedFile file_;
  size_t rows_ = 0, features_ = 0, labels_ = 0;
  std::span<const uint64_t> feature_offsets_, label_offsets_;  // [rows + 1]
  std::span<const uint32_t> feature_ids_, label_ids_;
  std::span<const float> values_;
};

// Opens XMC text (plain, .xz, .gz) or a prepared file. Text is prepared into the cache folder first if it is not there
// ($MODELET_CACHE, else $XDG_CACHE_HOME/modelet, else ~/.cache/modelet; the entry's name depends on path, size, time of change and
// options). Safe when several processes do it at once. Normalisation applies to both kinds: a prepared file records its own, and a
// mismatch with `normalize` is a UsageError.
Dataset load_dataset(const std::filesystem::path& path, Normalize normalize);

// Names of labels, line = id. Fewer or more lines than `labels` is a FormatError.
std::vector<std::string> load_label_names(const std::filesystem::path& path, size_t labels);

DataShape describe_shape(const Dataset& train, const Dataset& test);

}  // namespace modelet::shard
