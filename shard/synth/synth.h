// Synthetic sparse multi-label data of any shape, which can be learned: for tests, benchmarks and planning
// without real data.
//
// Every label owns a few characteristic features, a function of (seed, label). A sample draws its labels by
// Zipf's law, most of its features from those of its labels, and the rest (`noise`) from all features by
// Zipf's law. Labels may come in families whose members share part of their features: such labels are easily
// confused, and random negatives say little about which of them is right. Values look like tf-idf: rare
// features weigh more. Rows have length one. A row is a function of (options, split, row) alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/system/file.h"
#include "shard/data/read/sample.h"

namespace modelet::shard {

struct SynthOptions {
  uint64_t rows_train = 20000, rows_test = 5000;
  uint64_t features = 10000, labels = 5000;  // 1 .. 2^31 - 1
  double features_per_row = 50;              // mean; a row has 0.5 to 1.5 times as many at most
  double labels_per_row = 3;                 // mean; a row has 1 to twice that less one
  double zipf = 1.0;                         // exponent of the labels' law, > 0
  double noise = 0.25;                       // share of features that say nothing about the labels, in [0, 1]
  uint64_t family = 1;                       // labels that share features with each other; 1: none do
  double shared = 0.8;  // families: share of a label's features that all members have, in [0, 1)
  uint64_t seed = 1;
};

// Throws UsageError that names the option.
void validate(const SynthOptions& options);

std::vector<std::string> synth_preset_names();
// Throws UsageError for an unknown name.
SynthOptions synth_preset(const std::string& name);

// Draws from 0 .. count-1 with probability proportional to 1 / (rank + 1)^exponent. Immutable.
class ZipfTable {
 public:
  ZipfTable(uint64_t count, double exponent);
  // `u` uniform in [0, 1) -> rank. One binary search.
  uint32_t rank(double u) const;
  double share(uint32_t rank) const { return cumulative_[rank] - (rank == 0 ? 0 : cumulative_[rank - 1]); }

 private:
  std::vector<double> cumulative_;  // [count]; the last is 1
};

enum class Split : uint64_t { kTrain, kTest };

// Not thread-safe (scratch); any number of generators give the same rows.
class SynthGenerator {
 public:
  explicit SynthGenerator(const SynthOptions& options);
  // Valid until the next call.
  Sample sample(Split split, uint64_t row);

 private:
  void draw_labels(uint64_t split, uint64_t row);
  void draw_features(uint64_t split, uint64_t row);

  SynthOptions options_;
  uint32_t features_per_label_, family_features_;  // the first of a label's features are its family's
  ZipfTable label_law_, feature_law_;
  std::vector<uint32_t> label_of_rank_, feature_of_rank_;  // so that an id says nothing about its frequency
  std::vector<float> weight_;                              // [features]
  std::vector<uint64_t> seen_in_;  // [features] number of the last sample with this feature
  uint64_t samples_ = 0;
  std::vector<uint32_t> labels_, features_;
  std::vector<float> values_;
};

// Called from time to time with the number of rows written out of `total`.
using SynthProgress = std::function<void(uint64_t rows, uint64_t total)>;

// Writes train.mlt and test.mlt (prepared; rows are made with length one, so the files record no
// normalisation) to `folder`, which is created if needed; with `text` also train.txt and test.txt (XMC).
// `existing`: see AtomicFile.
void write_synth(const SynthOptions& options, const std::filesystem::path& folder, bool text,
                 const SynthProgress& progress = {}, Existing existing = Existing::kReplace);

}  // namespace modelet::shard
