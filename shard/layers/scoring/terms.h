// The terms of which scores consist (term.h).
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "shard/data/store/label_spread.h"
#include "shard/layers/scoring/term.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

// Most labels of which a batch's logits are computed at once.
inline constexpr size_t kScoredTogether = 96;

// All terms refer to the output modelets of the layer.
using OutputModelets = std::span<Modelet* const>;

// The label's neuron: weights * activations, and its bias.
std::unique_ptr<Term> make_network_term(OutputModelets modelets);

// scale[class of the label] * cos(x, centroid of the label). `rare_share`: factor of the scales of rare labels.
std::unique_ptr<Term> make_centroid_term(OutputModelets modelets, float rare_share);

// The margins of linear classifiers (classifiers.h), which have their weight in the score already.
std::unique_ptr<Term> make_classifier_term(OutputModelets modelets);

// Labels that are among the features of the sample get no chance (shard/data/pairs/exclusion.h).
std::unique_ptr<Term> make_exclusion_term(OutputModelets modelets, const LabelSpread& spread);

}  // namespace modelet::shard
