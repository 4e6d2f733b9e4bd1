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
  uint64_t bytes = 0, rows = 0;  // read in `seconds`, on one thread
  double seconds = 0;
};

// Measures the whole of a text file in any format (plain, .xz, .gz): `lines` decompresses it and finds the
// lines; `fit` fits the encoder that the format needs, if any; `parse` reads the samples.
std::vector<DataRate> measure_text(const std::filesystem::path& file, Encoding encoding);

// Measures prepared data, for about `seconds` each: `scan` reads it in order; `batches` gathers shuffled
// batches by sample and by feature, as a step needs them. Bytes are those of ids, values and labels.
std::vector<DataRate> measure_prepared(const Dataset& data, size_t batch, double seconds);

}  // namespace modelet::shard::bench
