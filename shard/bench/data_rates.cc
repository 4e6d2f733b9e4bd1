#include "shard/bench/data_rates.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/system/clock.h"
#include "shard/data/batch/batch.h"
#include "shard/data/batch/split.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/read/xmc_reader.h"

namespace modelet::shard::bench {
namespace {

uint64_t bytes_of(const Sample& sample) {
  return sample.features.size_bytes() + sample.values.size_bytes() + sample.labels.size_bytes();
}

// Repeats `pass`, which counts what it read, until `seconds` have passed.
DataRate repeat(const char* name, double seconds, const std::function<void(DataRate&)>& pass) {
  DataRate rate{.name = name};
  const Stopwatch watch;
  do {
    pass(rate);
    rate.seconds = watch.seconds();
  } while (rate.seconds < seconds);
  return rate;
}

}  // namespace

std::vector<DataRate> measure_text(const std::filesystem::path& file, Encoding encoding) {
  encoding.format = format_of(file, encoding);
  std::vector<DataRate> rates;
  rates.push_back(repeat("lines", 0, [&](DataRate& rate) {
    LineReader reader(file);
    for (std::string_view line; reader.next(line); ++rate.rows) {
    }
    rate.bytes = reader.bytes();
  }));
  std::unique_ptr<Encoder> encoder;
  if (encoding.format != DataFormat::kXmc)
    rates.push_back(repeat("fit", 0, [&](DataRate& rate) {
      encoder = fit_encoder(encoding, file);
      rate.bytes = rates.front().bytes;
      rate.rows = rates.front().rows;
    }));
  rates.push_back(repeat("parse", 0, [&](DataRate& rate) {
    const auto reader = encoder ? encoder->open_training(file) : std::make_unique<XmcReader>(file);
    for (Sample sample; reader->next(sample); ++rate.rows) {
    }
    rate.bytes = reader->bytes();
  }));
  return rates;
}

std::vector<DataRate> measure_prepared(const Dataset& data, size_t batch, double seconds) {
  uint64_t sum = 0;  // of ids, so that they have to be read
  const DataRate scan = repeat("scan", seconds, [&](DataRate& rate) {
    for (size_t row = 0; row < data.rows(); ++row) {
      const Sample sample = data.sample(row);
      for (const uint32_t feature : sample.features) sum += feature;
      for (const uint32_t label : sample.labels) sum += label;
      for (const float value : sample.values) sum += value > 0;
      rate.bytes += bytes_of(sample);
    }
    rate.rows += data.rows();
  });
  MODELET_CHECK(sum > 0 || data.nonzeros() + data.label_entries() == 0 || data.features() <= 1);

  constexpr uint64_t kSeed = 1;  // any
  BatchOrder order(all_rows(data.rows()), batch, kSeed);
  Batch gathered;
  uint64_t step = 0;
  const DataRate batches = repeat("batches", seconds, [&](DataRate& rate) {
    gathered.assign(data, order.rows(step++), true);
    rate.rows += gathered.size();
    rate.bytes +=
        (gathered.features.size() + gathered.values.size() + gathered.labels.size()) * sizeof(uint32_t);
  });
  return {scan, batches};
}

}  // namespace modelet::shard::bench
