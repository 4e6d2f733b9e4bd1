#include "shard/data/encode/table_encoder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/array/padding.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/data/encode/occurrences.h"
#include "shard/data/encode/string_table.h"
#include "shard/kernels/ids.h"

namespace modelet::shard {
namespace {

constexpr size_t kReservoirRecords = 1 << 16;  // quantiles are right to about 0.2 % of the samples
constexpr uint64_t kReservoirSeed = 1;
// Standardised values are clipped here: what lies further out is an accident of the data.
constexpr double kMaxDeviations = 100;
constexpr uint32_t kNoFeature = UINT32_MAX;
constexpr uint32_t kFeaturesOfCategory = 2, kMissingAt = 0, kRareAt = 1;

float logarithm(float value) { return std::copysign(std::log1p(std::abs(value)), value); }

float transformed(NumberKind kind, float value) {
  return kind == NumberKind::kLogarithm ? logarithm(value) : value;
}

CsvDialect dialect_of(const Encoding& options) {
  return options.format == DataFormat::kCriteo ? kTabSeparated : csv_dialect(options.csv);
}

bool has_header(const Encoding& options) {
  return options.format != DataFormat::kCriteo && options.csv.header;
}

// Equally many values between two edges, as far as equal values allow it.
std::vector<float> quantile_edges(std::vector<float> values, uint32_t bins) {
  std::sort(values.begin(), values.end());
  std::vector<float> edges;
  for (uint64_t bin = 1; bin < bins && !values.empty(); ++bin) {
    const float edge = values[values.size() * bin / bins];
    if (edge > values.front() && (edges.empty() || edge > edges.back())) edges.push_back(edge);
  }
  return edges;
}

}  // namespace

// A uniform sample of the numbers of all records (algorithm R: Vitter, 1985). Which records are in it depends
// only on their places.
class TableEncoder::Reservoir {
 public:
  explicit Reservoir(size_t columns) : columns_(columns) {}

  void add(const std::vector<float>& numbers) {
    const uint64_t row = rows_++;
    uint64_t place = row;
    if (row >= kReservoirRecords) {
      place = Rng(kReservoirSeed, {kStreamReservoir, row}).below(static_cast<uint32_t>(row + 1));
      if (place >= kReservoirRecords) return;
    } else {
      values_.resize(values_.size() + columns_);
    }
    std::ranges::copy(numbers, values_.begin() + static_cast<ptrdiff_t>(place * columns_));
  }

  // The values of a column that are not missing.
  std::vector<float> column(size_t column) const {
    std::vector<float> values;
    for (size_t i = column; i < values_.size(); i += columns_)
      if (!std::isnan(values_[i])) values.push_back(values_[i]);
    return values;
  }

 private:
  size_t columns_;
  uint64_t rows_ = 0;
  std::vector<float> values_;  // [records, columns]
};

TableEncoder::TableEncoder(const Encoding& options)
    : options_(options),
      layout_(table_layout(options.table, options.format)),
      numbers_(layout_.numbers.size()) {
  for (size_t i = 0; i < numbers_.size(); ++i) numbers_[i].kind = layout_.numbers[i].kind;
}

std::unique_ptr<TableEncoder> TableEncoder::fit(const Encoding& options, const std::filesystem::path& text,
                                                const FitProgress& progress) {
  return fit(options, CsvReader(LineReader(text), dialect_of(options)), progress);
}

std::unique_ptr<TableEncoder> TableEncoder::fit(const Encoding& options, CsvReader csv,
                                                const FitProgress& progress) {
  constexpr uint64_t kRecordsBetweenReports = 4096;
  std::unique_ptr<TableEncoder> encoder(new TableEncoder(options));
  TableRecords records(encoder->layout_, has_header(options), options.table.hash_features, std::move(csv),
                       LabelsIn::kRequired);
  Reservoir reservoir(encoder->numbers_.size());
  std::vector<Occurrences> samples_with(options.table.hash_features);
  TableRecord record;
  for (uint64_t count = 1; records.next(record); ++count) {
    if (count >= kMaxCount) records.csv().fail("more than 2^31 - 1 samples; divide the file");
    reservoir.add(record.numbers);
    for (const uint32_t bucket : record.buckets)
      if (bucket != TableRecord::kMissing) samples_with[bucket].add(count);
    if (progress && count % kRecordsBetweenReports == 0)
      progress(records.csv().bytes(), records.csv().fraction());
  }
  encoder->known_.resize((samples_with.size() + 7) / 8);
  for (size_t bucket = 0; bucket < samples_with.size(); ++bucket)
    if (samples_with[bucket].samples >= options.table.min_count)
      encoder->known_[bucket / 8] |= static_cast<uint8_t>(1 << (bucket % 8));
  for (size_t i = 0; i < encoder->numbers_.size(); ++i)
    encoder->fit_number(encoder->numbers_[i], reservoir.column(i));
  encoder->number_features();
  return encoder;
}

void TableEncoder::fit_number(Number& number, std::vector<float> values) const {
  if (number.kind == NumberKind::kBins) {
    number.edges = quantile_edges(std::move(values), options_.table.bins);
    return;
  }
  double sum = 0, squares = 0;
  for (float& value : values) sum += value = transformed(number.kind, value);
  const double mean = values.empty() ? 0 : sum / static_cast<double>(values.size());
  for (const float value : values) squares += (value - mean) * (value - mean);
  const auto deviation =
      static_cast<float>(std::sqrt(squares / static_cast<double>(std::max<size_t>(values.size(), 1))));
  // A column that is constant says nothing.
  number.scale = {static_cast<float>(mean), std::isnormal(deviation) ? 1 / deviation : 0};
}

// Places the kinds of features one after the other, and the known buckets after them.
void TableEncoder::number_features() {
  uint32_t next = 0;
  for (Number& number : numbers_) {
    number.slot = next;
    next += number.kind == NumberKind::kBins ? 2 + static_cast<uint32_t>(number.edges.size()) : 2;
  }
  category_slot_ = next;
  cross_slot_ = category_slot_ + kFeaturesOfCategory * static_cast<uint32_t>(layout_.categories.size());
  features_ = cross_slot_ + static_cast<uint32_t>(layout_.crosses.size());
  feature_of_.assign(options_.table.hash_features, kNoFeature);
  for (size_t bucket = 0; bucket < feature_of_.size(); ++bucket)
    if ((known_[bucket / 8] >> (bucket % 8) & 1) != 0) feature_of_[bucket] = features_++;
}

TableEncoder::TableEncoder(const SafetensorsFile& state) : TableEncoder(encoder_options(state)) {
  const std::string damaged = state.path().string() + ": damaged: ";
  const auto known = state.values<uint8_t>("known", {(uint64_t{options_.table.hash_features} + 7) / 8});
  known_.assign(known.begin(), known.end());
  const auto counts = list_in<uint32_t>(state, "edges.counts");
  auto edges = list_in<float>(state, "edges");
  auto scales = list_in<float>(state, "scales");
  size_t bin_columns = 0;
  for (Number& number : numbers_) {
    if (number.kind == NumberKind::kBins) {
      if (bin_columns == counts.size() || counts[bin_columns] >= options_.table.bins ||
          counts[bin_columns] > edges.size())
        throw FormatError(damaged + "its edges do not belong to its columns");
      number.edges.assign(edges.begin(), edges.begin() + counts[bin_columns]);
      edges = edges.subspan(counts[bin_columns++]);
      if (!std::ranges::all_of(number.edges, [](float edge) { return std::isfinite(edge); }) ||
          std::ranges::adjacent_find(number.edges, std::greater_equal{}) != number.edges.end())
        throw FormatError(damaged + "its edges do not ascend");
    } else {
      if (scales.size() < 2 || !std::isfinite(scales[0]) || !std::isfinite(scales[1]))
        throw FormatError(damaged + "its scales do not belong to its columns");
      number.scale = {scales[0], scales[1]};
      scales = scales.subspan(2);
    }
  }
  if (bin_columns != counts.size() || !edges.empty() || !scales.empty())
    throw FormatError(damaged + "it has more columns than its options");
  number_features();
}

std::vector<std::byte> TableEncoder::state() const {
  std::vector<uint32_t> counts;
  std::vector<float> edges, scales;
  for (const Number& number : numbers_) {
    if (number.kind == NumberKind::kBins) {
      counts.push_back(static_cast<uint32_t>(number.edges.size()));
      edges.insert(edges.end(), number.edges.begin(), number.edges.end());
    } else {
      scales.insert(scales.end(), {number.scale.mean, number.scale.reciprocal_deviation});
    }
  }
  StringTable labels;
  for (const size_t column : layout_.labels) labels.insert(layout_.columns[column]);
  std::vector<Tensor> tensors = label_tensors(labels);
  tensors.push_back(tensor("known", {known_.size()}, known_));
  tensors.push_back(tensor("edges.counts", {counts.size()}, counts));
  tensors.push_back(tensor("edges", {edges.size()}, edges));
  tensors.push_back(tensor("scales", {scales.size()}, scales));
  return safetensors_bytes(tensors, encoder_metadata(options_));
}

class TableEncoder::Reader : public SampleReader {
 public:
  Reader(const TableEncoder& encoder, bool header, CsvReader csv)
      : encoder_(encoder),
        records_(encoder.layout_, header, encoder.options_.table.hash_features, std::move(csv),
                 LabelsIn::kOptional) {}

  uint64_t features() const override { return encoder_.features_; }
  uint64_t labels() const override { return encoder_.layout_.labels.size(); }
  bool ready() const override { return records_.csv().ready(); }
  uint64_t bytes() const override { return records_.csv().bytes(); }
  double fraction() const override { return records_.csv().fraction(); }

  bool next(Sample& sample) override {
    if (!records_.next(record_)) return false;
    if (++rows_ >= kMaxCount) records_.csv().fail("more than 2^31 - 1 samples; divide the file");
    features_.clear();
    values_.clear();
    found_.clear();
    for (size_t i = 0; i < record_.numbers.size(); ++i) add_number(encoder_.numbers_[i], record_.numbers[i]);
    const size_t categories = encoder_.layout_.categories.size();
    for (size_t i = 0; i < record_.buckets.size(); ++i) {
      if (i < categories)
        add_value(encoder_.category_slot_ + kFeaturesOfCategory * static_cast<uint32_t>(i), kRareAt,
                  record_.buckets[i]);
      else
        add_value(encoder_.cross_slot_ + static_cast<uint32_t>(i - categories), 0, record_.buckets[i]);
    }
    append_found();
    sample = {features_, values_, record_.labels};
    return true;
  }

 private:
  void add(uint32_t feature, float value = 1) {
    features_.push_back(feature);
    values_.push_back(value);
  }

  void add_number(const Number& number, float value) {
    if (std::isnan(value)) return add(number.slot);
    if (number.kind == NumberKind::kBins) {
      const auto edge = std::upper_bound(number.edges.begin(), number.edges.end(), value);
      return add(number.slot + 1 + static_cast<uint32_t>(edge - number.edges.begin()));
    }
    const double deviations = (double{transformed(number.kind, value)} - double{number.scale.mean}) *
                              double{number.scale.reciprocal_deviation};
    const auto clipped = static_cast<float>(std::clamp(deviations, -kMaxDeviations, kMaxDeviations));
    if (clipped != 0) add(number.slot + 1, clipped);
  }

  // A category or cross; its own features begin at `slot`.
  void add_value(uint32_t slot, uint32_t rare_at, uint32_t bucket) {
    if (bucket == TableRecord::kMissing)
      add(slot + kMissingAt);
    else if (const uint32_t feature = encoder_.feature_of_[bucket]; feature != kNoFeature)
      found_.push_back(feature);
    else if (encoder_.options_.table.min_count > 1)
      add(slot + rare_at);
  }

  void append_found() {
    const size_t count = found_.size();
    found_.resize(count + kVectorFloats);
    kernels::sort_ids(found_.data(), count);
    found_.resize(count);
    for (const uint32_t feature : found_) {
      if (features_.empty() || features_.back() != feature)
        add(feature);
      else
        values_.back() += 1;
    }
  }

  const TableEncoder& encoder_;
  TableRecords records_;
  TableRecord record_;
  uint64_t rows_ = 0;
  std::vector<uint32_t> features_, found_;
  std::vector<float> values_;
};

std::unique_ptr<SampleReader> TableEncoder::open(LineReader text) const {
  return std::make_unique<Reader>(*this, has_header(options_),
                                  CsvReader(std::move(text), dialect_of(options_)));
}

std::unique_ptr<SampleReader> TableEncoder::open_rows(CsvReader rows) const {
  return std::make_unique<Reader>(*this, false, std::move(rows));
}

}  // namespace modelet::shard
