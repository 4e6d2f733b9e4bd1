// How fast data is read: text on one core, and prepared data as training reads it. For `modelet bench data`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/store/dataset.h"

namespace modelet::shard::bench {

struct DataRate {
  std::string name;
  uint64_t bytes = 0, rows = 0;  // that were read in `seconds`, on one thread
  double seconds = 0;
};

// Text of any format (plain, .xz, .gz), the whole file: `lines` finds the lines, decompressing if need be;
// `fit` fits the encoder that the format needs, if any; `parse` reads the samples.
std::vector<DataRate> measure_text(const std::filesystem::path& file, Encoding encoding);

// Prepared data, about `seconds` each: `scan` walks it in order, `batches` gathers shuffled batches by sample
// and by feature, which is what a step needs. Bytes are those of ids, values and labels.
std::vector<DataRate> measure_prepared(const Dataset& data, size_t batch, double seconds);

}  // namespace modelet::shard::bench
