// WordFeatures: words -> features. A feature is a bucket of hashed n-grams (ngrams.h) that occurs in enough training
// samples; features are numbered by bucket. Words that training did not have are left out. One thread fits it; then any
// thread may use it. WordColumns does the same for columns of a table. State:
//
//   buckets U32 [features]   bucket of a feature, ascending
//   idf F32 [features]       with weight tfidf
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/array/aligned.h"
#include "base/experiment/experiment.h"
#include "shard/data/encode/features/column_features.h"
#include "shard/data/encode/features/ngrams.h"
#include "shard/data/encode/features/occurrences.h"

namespace modelet::shard {

class WordFeatures {
 public:
  explicit WordFeatures(const Experiment::Text& options) : options_(options) {}

  // Fitting: the words of each sample, numbered from 1, and then the end.
  void count(std::span<const std::string_view> words, uint64_t sample);
  void finish(uint64_t samples);
  // Instead of fitting: each bucket is a feature. UsageError with weights that depend on how often words occur.
  void know_all();

  void add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const;
  void restore(const SafetensorsFile& state, const std::string& prefix);

  uint32_t features() const { return static_cast<uint32_t>(buckets_.size()); }

  // Adds the features of words. One thread uses an appender, and what it belongs to must outlive it.
  class Appender {
   public:
    explicit Appender(const WordFeatures& of) : of_(of), hasher_(of.options_) {}
    void append(std::span<const std::string_view> words, FeatureList& features);

   private:
    void count_features(size_t known, FeatureList& features);

    const WordFeatures& of_;
    NgramHasher hasher_;
    std::vector<uint32_t> ids_;   // of the sample's n-grams: buckets, then features
    std::vector<uint32_t> ends_;  // where each feature ends in the sorted ids_
  };

 private:
  struct Fitting {
    explicit Fitting(const Experiment::Text& options) : hasher(options), buckets(options.buckets) {}

    NgramHasher hasher;
    AlignedVector<Occurrences> buckets;
    // The buckets of a sample are counted when those of the next one are requested: by then they have arrived
    // from memory.
    std::vector<uint32_t> ids, fetched;
    uint64_t fetched_of = 0;  // sample

    void count_fetched();
  };

  void number_buckets();

  Experiment::Text options_;
  std::unique_ptr<Fitting> fitting_;
  std::vector<uint32_t> buckets_;
  std::vector<float> idf_;

  // The feature of a bucket is its rank among buckets_ (kernels::member_ranks): blocks_ takes 1/16 of the
  // memory that an id for each bucket would take, so it stays in the second-level cache.
  AlignedVector<uint32_t> blocks_;
};

// The words of some columns; no n-gram crosses from one column to the next.
class WordColumns : public ColumnFeatures {
 public:
  // `unit`: the features of a record that has words are scaled to length one.
  WordColumns(std::vector<size_t> columns, const Experiment::Text& options, bool unit)
      : columns_(std::move(columns)), unit_(unit), words_(options) {}

  void count(const CellReader& cells, uint64_t record) override;
  void finish(uint64_t records) override { words_.finish(records); }
  void know_all() override { words_.know_all(); }
  void add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const override {
    words_.add_tensors(prefix, tensors);
  }
  void restore(const SafetensorsFile& state, const std::string& prefix) override { words_.restore(state, prefix); }
  uint32_t features() const override { return words_.features(); }
  std::unique_ptr<ColumnFeatures::Appender> appender() const override;

 private:
  class RecordAppender;

  // The words of a record.
  class Words {
   public:
    std::span<const std::string_view> of(const CellReader& cells, std::span<const size_t> columns);

   private:
    std::vector<std::string_view> words_;
    std::deque<std::string> names_;  // of numbers
  };

  const std::vector<size_t> columns_;
  const bool unit_;
  WordFeatures words_;
  Words counted_;
};

}  // namespace modelet::shard
