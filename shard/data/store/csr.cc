#include "shard/data/store/csr.h"

#include <cmath>
#include <string>

#include "base/error.h"
#include "shard/data/read/sample_reader.h"

namespace modelet::shard {
namespace {

[[noreturn]] void fail_csr(const std::string& what) { throw UsageError("the samples in memory: " + what); }

// Offsets first: they say which ids and values a row has.
void check_rows(std::span<const uint64_t> offsets, std::span<const uint32_t> ids, uint64_t count,
                const std::string& what) {
  if (offsets.front() != 0 || offsets.back() != ids.size())
    fail_csr("the rows' offsets of " + what + " do not lead from 0 to " + std::to_string(ids.size()));
  for (size_t row = 0; row + 1 < offsets.size(); ++row)
    if (offsets[row] > offsets[row + 1])
      fail_csr("the offsets of " + what + " do not ascend at row " + std::to_string(row));
  for (size_t row = 0; row + 1 < offsets.size(); ++row) {
    const auto of_row = ids.subspan(offsets[row], offsets[row + 1] - offsets[row]);
    if (of_row.empty()) continue;
    bool good = of_row.back() < count;
    for (size_t i = 1; i < of_row.size(); ++i) good &= of_row[i - 1] < of_row[i];
    if (!good)
      fail_csr("the " + what + " of row " + std::to_string(row) + " do not ascend or are not below " +
               std::to_string(count));
  }
}

}  // namespace

void check_csr(const CsrSamples& samples) {
  if (samples.feature_offsets.empty() || samples.feature_offsets.size() != samples.label_offsets.size())
    fail_csr("features and labels have another number of rows");
  if (samples.rows() >= kMaxCount || samples.features >= kMaxCount || samples.labels >= kMaxCount)
    fail_csr("rows, features and labels must be fewer than " + std::to_string(kMaxCount));
  if (samples.feature_ids.size() != samples.values.size())
    fail_csr(std::to_string(samples.feature_ids.size()) + " features have " +
             std::to_string(samples.values.size()) + " values");
  check_rows(samples.feature_offsets, samples.feature_ids, samples.features, "features");
  check_rows(samples.label_offsets, samples.label_ids, samples.labels, "labels");
  for (const float value : samples.values)
    if (!std::isfinite(value)) fail_csr("a value is not a finite number");
}

}  // namespace modelet::shard
