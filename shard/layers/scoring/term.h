// Term: a part of the score of a label. Scoring (scoring.h) has the terms of a layer and adds up what they say. A
// term is one of
//
//   bias       of the label's logit, for every sample
//   pairs      factors of x_f / |x| in the label's logit, for the features f that occur with the label. Scoring sums
//              up those of all terms before they meet samples, so a further term of pairs costs no further product.
//   logit      anything else that depends on the sample
//   offset     of the label's score, for every sample, whatever Scoring makes of the logit
//
// or several of these, and overrides the functions for them. Terms refer to modelets. Their functions may be called
// from any thread while nobody changes these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/array/matrix.h"
#include "base/array/scratch.h"
#include "shard/data/batch/batch.h"
#include "shard/data/pairs/batch_features.h"
#include "shard/data/pairs/pair_lanes.h"
#include "shard/data/read/sample.h"

namespace modelet::shard {

// A label: a row of an output modelet, both by index.
struct LabelRow {
  size_t modelet, row;
};

// Labels of one modelet, rows ascending.
struct LabelRows {
  size_t modelet;
  std::span<const uint32_t> rows;
};

// A sample that is scored.
struct Query {
  Sample sample;
  const float* hidden;  // [d] activations of the last hidden layer
};

// Most labels of which a batch's logits are computed at once.
inline constexpr size_t kScoredTogether = 96;

// What terms read of samples.
struct TermNeeds {
  size_t features = 0;      // how many there are; 0: none are read
  bool by_feature = false;  // whether BatchFeatures::at() is used
};

// A batch of samples that are scored. Refers to what it is made of, and keeps its memory. One thread assigns it;
// then any thread may read it.
class QueryBatch {
 public:
  // hidden_transposed [d, padded samples]. `batch` may be null if terms need no features. `as_pairs`: activations are
  // rounded to bf16, for products of pairs.
  void assign(const Batch* batch, ConstMatrix hidden_transposed, TermNeeds needs, bool as_pairs);

  ConstMatrix hidden_transposed() const { return hidden_transposed_; }
  const Bf16* hidden_pairs() const {
    return as_pairs_ ? hidden_pairs_.data() : nullptr;
  }  // [d / 2, columns, 2]
  bool has_features() const { return has_features_; }
  const BatchFeatures& features() const { return features_; }
  size_t columns() const { return hidden_transposed_.cols; }  // padded samples

 private:
  ConstMatrix hidden_transposed_;
  bool as_pairs_ = false, has_features_ = false;
  Scratch<Bf16> hidden_pairs_;
  BatchFeatures features_;
};

// Memory of one thread.
struct TermScratch {
  Scratch<float> rows;
  Scratch<Bf16> bf16_rows;
  PairLanes lanes;
  std::vector<float> pair_values;
};

class Term {
 public:
  virtual ~Term() = default;

  virtual std::string_view name() const = 0;
  virtual TermNeeds needs() const { return {}; }

  // biases, offsets [labels.rows.size()] += those of the labels.
  virtual void add_biases(const LabelRows& /*labels*/, float* /*biases*/) const {}
  virtual void add_offsets(const LabelRows& /*labels*/, float* /*offsets*/) const {}

  // values [pairs of the label] += the factors of x_f / |x|.
  virtual void add_pair_values(LabelRow /*label*/, std::span<float> /*values*/) const {}

  // The same part of logits for one label, for all labels of the layer (logits [neurons] += it), and for a batch
  // (logits [labels.rows.size(), batch.columns()] += it).
  virtual float logit(const Query& /*query*/, LabelRow /*label*/) const { return 0; }
  virtual void add_logits(const Query& /*query*/, float* /*logits*/) const {}
  virtual void add_logits(const QueryBatch& /*batch*/, const LabelRows& /*labels*/, TermScratch& /*scratch*/,
                          float* /*logits*/) const {}
};

}  // namespace modelet::shard
