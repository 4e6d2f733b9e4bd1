// NearestSamples: which training samples speak for a label: of those that have it, the ones most like a sample, by the cosine of
// their features. Immutable after construction; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shard/data/store/dataset.h"
#include "shard/inference/model.h"

namespace modelet::shard {

// The data that a model was trained on, where its experiment says that it is; nothing if there is no such file, or if it has
// other samples. The model may come from a stranger, who may have named any file: no error quotes what is in it.
std::optional<Dataset> training_data_of(const Model& model, const PrepareProgress& progress = {});

class NearestSamples {
 public:
  // `data`: samples as the model sees them.
  explicit NearestSamples(Dataset data);

  struct Found {
    uint32_t row = 0;  // of the data, from 0
    float cosine = 0;
  };
  // At most so many, the nearest first; rows break ties. Work: all features of the samples with the label.
  std::vector<Found> find(const Sample& sample, uint32_t label, size_t most) const;

 private:
  Dataset data_;
  std::vector<uint64_t> offsets_;  // [labels + 1]
  std::vector<uint32_t> rows_;     // of the samples with each label in turn, ascending
};

}  // namespace modelet::shard
