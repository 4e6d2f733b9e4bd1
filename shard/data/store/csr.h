// CsrSamples: samples that another program keeps in memory, as scipy and others do: all ids in one array, all
// values in another, and where each row begins. Dataset::of() makes a data set of them, and copies neither
// the feature ids nor, unless they are normalised, the values. CsrSamples owns nothing; the arrays must
// outlive the data set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace modelet::shard {

struct CsrSamples {
  uint64_t features = 0, labels = 0;          // ids lie below these
  std::span<const uint64_t> feature_offsets;  // [rows + 1] into the next two, from 0
  std::span<const uint32_t> feature_ids;      // strictly ascending within a row
  std::span<const float> values;              // finite
  std::span<const uint64_t> label_offsets;    // [rows + 1] into the labels, from 0
  std::span<const uint32_t> label_ids;        // strictly ascending within a row

  size_t rows() const { return feature_offsets.empty() ? 0 : feature_offsets.size() - 1; }
};

// Throws UsageError that names the row, unless all of the above holds.
void check_csr(const CsrSamples& samples);

}  // namespace modelet::shard
