// Explanation: why a label has its score. The network is linear where it stands: its ReLUs either pass a sum on or cut
// it off, and which of them do so is known for a sample. So the score is a sum over the sample's features, exactly,
// plus what does not depend on them: biases, the prior, trust. (Input times gradient: Shrikumar et al., ICML 2017,
// section 2.2; for ReLU networks the parts add up.) The direct path and the classifiers are linear in x / |x|.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/data/read/sample.h"
#include "shard/inference/model.h"

namespace modelet::shard {

struct FeatureShare {
  uint32_t feature = 0;
  float value = 0;   // in the sample, as the model sees it
  double share = 0;  // of the score; positive: it speaks for the label
};

struct Explanation {
  uint32_t label = 0;
  double score = 0;                    // rest + the sum of all shares
  double rest = 0;                     // what the label has without any feature
  std::vector<FeatureShare> features;  // all of the sample's, the largest share by size first
};

// `label` < model.shape().labels.
Explanation explain(const Model& model, const Sample& sample, uint32_t label);

}  // namespace modelet::shard
