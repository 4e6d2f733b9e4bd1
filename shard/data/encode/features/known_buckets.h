// KnownBuckets: which buckets of hashed values occur often enough in training to be features. One thread fits it; then
// any thread may read it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shard/data/encode/features/column_features.h"
#include "shard/data/encode/features/occurrences.h"
#include "shard/format/safetensors.h"

namespace modelet::shard {

class KnownBuckets {
 public:
  explicit KnownBuckets(uint32_t buckets) : buckets_(buckets) {}

  uint32_t buckets() const { return buckets_; }

  // Fitting: the buckets of each record, which is numbered from 1, and then the end.
  void count(uint32_t bucket, uint64_t record) {
    if (counts_.empty()) counts_.resize(buckets_);
    counts_[bucket].add(record);
  }
  void finish(uint32_t min_count);
  void know_all();  // instead of fitting

  // known U8 [(buckets + 7) / 8]: bit b % 8 of byte b / 8 says whether bucket b is known.
  Tensor as_tensor(const std::string& name) const { return tensor(name, {known_.size()}, known_); }
  void restore(const SafetensorsFile& state, const std::string& name);

  // Known buckets are numbered from `first`; returns the number after the last.
  uint32_t number_from(uint32_t first);
  uint32_t feature_of(uint32_t bucket) const { return feature_of_[bucket]; }  // or kNoFeature

 private:
  uint32_t buckets_;
  std::vector<Occurrences> counts_;  // while it is fitted
  std::vector<uint8_t> known_;
  std::vector<uint32_t> feature_of_;
};

}  // namespace modelet::shard
