// NumberFeatures: how numbers become features: first that it is missing, then its range, or its standardised value.
// Ranges and scales are fitted to a sample of the training records. One thread fits it; then any thread may use it.
//
//   edges.counts U32 [kinds of ranges]  how many edges each has
//   edges F32                           of all these, ascending; range: how many edges are not above the value
//   scales F32 [2 x the others]         mean and reciprocal standard deviation
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/experiment/table_layout.h"
#include "shard/data/encode/features/column_features.h"
#include "shard/format/safetensors.h"

namespace modelet::shard {

class NumberFeatures {
 public:
  // For each number of a record what it becomes; ranges are at most `bins`.
  NumberFeatures(std::vector<NumberKind> kinds, uint32_t bins);

  // Fitting: the numbers of each record [kinds], NaN if missing; and then the end.
  void count(std::span<const float> numbers);
  void finish();

  void add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const;
  void restore(const SafetensorsFile& state, const std::string& prefix);

  // Features are numbered from `first`; returns the number after the last.
  uint32_t number_from(uint32_t first);
  void append(std::span<const float> numbers, FeatureList& features) const;

 private:
  // A uniform sample of the numbers of all records (algorithm R: Vitter, 1985). Which records are in it depends
  // only on their places.
  class Reservoir {
   public:
    void add(std::span<const float> numbers);
    // The values of a number that are not missing.
    std::vector<float> column(size_t column) const;

   private:
    size_t columns_ = 0;
    uint64_t rows_ = 0;
    std::vector<float> values_;  // [records, columns]
  };

  struct Number {
    NumberKind kind;
    std::vector<float> edges;                   // kBins
    float mean = 0, reciprocal_deviation = 0;   // the others
    uint32_t slot = 0;                          // feature of its missing value
  };

  void fit(Number& number, std::vector<float> values) const;
  void append(const Number& number, float value, FeatureList& features) const;

  uint32_t bins_;
  std::vector<Number> numbers_;
  Reservoir reservoir_;  // while it is fitted
  // What add_tensors() points to.
  std::vector<uint32_t> counts_;
  std::vector<float> edges_, scales_;
};

}  // namespace modelet::shard
