// DataFacts: the properties of training data that decide how to train on it (recipe.h). They are measured
// on all samples, or on every n-th if there are many. The same data always gives the same facts. Plain
// values.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "base/experiment/experiment.h"
#include "shard/data/store/dataset.h"

namespace modelet::agent {

struct DataFacts {
  uint64_t rows = 0, features = 0, labels = 0;
  uint64_t occurring_features = 0;                  // 0: all
  double features_per_row = 0, labels_per_row = 0;  // means
  uint64_t most_labels = 0;                         // the most labels of one sample
  uint64_t unseen_labels = 0, rare_labels = 0;      // labels in no sample; labels in one or two samples
  double often_share = 0;           // share of the samples' labels that are labels of 100 samples or more
  double top_share = 0;             // share of the samples that have the most frequent label
  float smallest = 0, largest = 0;  // values of features that are not zero
  bool unit_rows = false;           // every sample's feature vector has length 1, within 1 %
  // Features and labels with the same number are the same item, and a sample's features are never among its
  // labels.
  bool own_excluded = false;
  // The share of a sample's labels that are among its features, if features and labels with the same number are the
  // same item; 0 if they are not.
  double own_share = 0;
  bool one_value = false;  // all values are equal: a feature is there or not

  // Whether a sample has most of the features, which then are measurements rather than words or items.
  bool dense() const { return features_per_row > 0.5 * static_cast<double>(features); }
  bool one_label() const { return most_labels <= 1; }
};

DataFacts measure_facts(const shard::Dataset& train);
// The shape of a model of these samples.
DataShape shape_of(const DataFacts& facts);

// As members of the event "recipe" (docs/events.md).
nlohmann::json to_json(const DataFacts& facts);

}  // namespace modelet::agent
