// TableEncoder: records of typed columns (shard/data/read/table_records.h) -> samples. Features of a model,
// in this order:
//
//   for each number column    missing; then its bins, or the standardised value
//   for each category column  missing; rare: all values that fewer than table.min_count training samples have
//   for each cross            rare
//   for each bucket           all values of categories and crosses that are hashed into it, unless all of
//                             them are rare
//
// There are table.hash_features buckets; only known buckets have a feature, and so rows of weights.
//
// All features have the value 1, except standardised numbers, and buckets into which several values of a
// record fall, which have their number. With table.min_count = 1 no training sample has a rare feature;
// values that training did not have are then left out. Bins and scales come from a reservoir of training
// records. The state, besides that of every encoder (shard/data/encode/encoder.h):
//
//   known U8 [(hash_features + 7) / 8]   bit b % 8 of byte b / 8: bucket b is not rare
//   edges.counts U32 [bin columns]       how many edges a column has
//   edges F32                            of all these columns, ascending; bin: how many edges are not above the value
//   scales F32 [2 x other columns]       mean and reciprocal standard deviation of each number column
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/experiment/table_layout.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/read/table_records.h"

namespace modelet::shard {

class TableEncoder : public Encoder {
 public:
  static std::unique_ptr<TableEncoder> fit(const Encoding& options, const std::filesystem::path& text,
                                           const FitProgress& progress);
  static std::unique_ptr<TableEncoder> fit(const Encoding& options, CsvReader csv,
                                           const FitProgress& progress);
  explicit TableEncoder(const SafetensorsFile& state);

  std::vector<std::byte> state() const override;
  using Encoder::open;
  std::unique_ptr<SampleReader> open(LineReader text) const override;
  std::unique_ptr<SampleReader> open_rows(CsvReader rows) const override;

 private:
  class Reader;
  class Reservoir;

  struct Scale {
    float mean, reciprocal_deviation;
  };
  // How values of a number column become features.
  struct Number {
    NumberKind kind;
    std::vector<float> edges;  // kBins
    Scale scale{};             // the others
    uint32_t slot = 0;         // feature of its missing value
  };

  explicit TableEncoder(const Encoding& options);
  void fit_number(Number& number, std::vector<float> values) const;
  void number_features();

  Encoding options_;
  TableLayout layout_;
  std::vector<Number> numbers_;  // [layout.numbers]
  std::vector<uint8_t> known_;
  std::vector<uint32_t> feature_of_;             // [hash_features] bucket -> feature, or kNoFeature: rare
  uint32_t category_slot_ = 0, cross_slot_ = 0;  // features where these kinds begin
  uint32_t features_ = 0;
};

}  // namespace modelet::shard
