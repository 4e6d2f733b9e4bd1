#include "shard/data/encode/features/known_buckets.h"

namespace modelet::shard {

void KnownBuckets::finish(uint32_t min_count) {
  known_.assign((size_t{buckets_} + 7) / 8, 0);
  for (size_t bucket = 0; bucket < counts_.size(); ++bucket)
    if (counts_[bucket].samples >= min_count) known_[bucket / 8] |= static_cast<uint8_t>(1 << (bucket % 8));
  counts_ = {};
}

void KnownBuckets::know_all() {
  known_.assign((size_t{buckets_} + 7) / 8, 0xff);
  if (buckets_ % 8 != 0) known_.back() = static_cast<uint8_t>((1 << buckets_ % 8) - 1);
}

void KnownBuckets::restore(const SafetensorsFile& state, const std::string& name) {
  const auto known = state.values<uint8_t>(name, {(uint64_t{buckets_} + 7) / 8});
  known_.assign(known.begin(), known.end());
}

uint32_t KnownBuckets::number_from(uint32_t first) {
  feature_of_.assign(buckets_, kNoFeature);
  for (size_t bucket = 0; bucket < feature_of_.size(); ++bucket)
    if ((known_[bucket / 8] >> (bucket % 8) & 1) != 0) feature_of_[bucket] = first++;
  return first;
}

}  // namespace modelet::shard
