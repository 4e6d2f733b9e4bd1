#include "shard/inference/explanation.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/error.h"
#include "shard/data/pairs/own_items.h"
#include "shard/data/read/sample.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {
namespace {

// Activations of each hidden layer of a network that is whole.
std::vector<std::vector<float>> activations_of(const Network& network, const Sample& sample) {
  std::vector<std::vector<float>> layers;
  InputLayer::SampleMemory memory;
  for (size_t layer = 0; layer < network.hidden_layers(); ++layer) {
    layers.emplace_back(network.experiment().model.hidden[layer]);
    if (layer == 0)
      network.input().forward(sample, memory, layers[0].data());
    else
      network.hidden(layer).forward(layers[layer - 1].data(), layers[layer].data());
  }
  return layers;
}

LabelRow row_of(const Scoring& scoring, uint32_t neuron) {
  for (size_t m = 0; m < scoring.modelets().size(); ++m) {
    const ModeletSpec& spec = scoring.modelets()[m]->spec();
    if (neuron >= spec.begin && neuron < spec.begin + spec.neurons()) return {m, neuron - spec.begin};
  }
  MODELET_CHECK(false, "every neuron belongs to a modelet");
}

// The parts of one tower's score.
class TowerShares {
 public:
  TowerShares(const Network& network, const Sample& sample, uint32_t neuron)
      : network_(network),
        scoring_(network.scoring()),
        sample_(sample),
        row_(row_of(scoring_, neuron)),
        shares_(sample.features.size()) {
    add_network();
    add_pairs();
    for (double& share : shares_) share *= scoring_.factor(row_);
    rest_ = rest_ * scoring_.factor(row_) + scoring_.constant(row_);
  }

  std::span<const double> shares() const { return shares_; }  // [features of the sample]
  double rest() const { return rest_; }

 private:
  void add_network() {
    const std::vector<std::vector<float>> activations = activations_of(network_, sample_);
    // Of the logit, with respect to the activations of a layer.
    std::vector<double> gradient = weights_of(*scoring_.modelets()[row_.modelet], row_.row);
    for (size_t layer = network_.hidden_layers() - 1;; --layer) {
      for (size_t neuron = 0; neuron < gradient.size(); ++neuron)
        if (activations[layer][neuron] <= 0) gradient[neuron] = 0;
      if (layer == 0) break;
      std::vector<double> below(activations[layer - 1].size());
      for (const Modelet* modelet : network_.modelets_of_layer(layer))
        for (size_t r = 0; r < modelet->parameters().rows(); ++r) {
          const double of_neuron = gradient[modelet->spec().begin + r];
          if (of_neuron == 0) continue;
          rest_ += of_neuron * modelet->parameters().bias(r);
          const std::vector<double> weights = weights_of(*modelet, r);
          for (size_t i = 0; i < below.size(); ++i) below[i] += of_neuron * weights[i];
        }
      gradient = std::move(below);
    }
    for (const Modelet* modelet : network_.modelets_of_layer(0)) add_input(*modelet, gradient);
  }

  // Of the columns of an input modelet, whose last row has the biases.
  void add_input(const Modelet& modelet, const std::vector<double>& gradient) {
    const std::span<const double> of_columns =
        std::span(gradient).subspan(modelet.spec().begin, modelet.parameters().cols());
    const auto product = [&](size_t r) {
      const std::vector<double> weights = weights_of(modelet, r);
      double sum = 0;
      for (size_t i = 0; i < weights.size(); ++i) sum += weights[i] * of_columns[i];
      return sum;
    };
    rest_ += product(modelet.parameters().rows() - 1);
    for (size_t f = 0; f < shares_.size(); ++f)
      if (const uint32_t r = network_.features().row(sample_.features[f]); r != FeatureRows::kNone)
        shares_[f] += sample_.values[f] * product(r);
  }

  static std::vector<double> weights_of(const Modelet& modelet, size_t row) {
    std::vector<float> scratch(modelet.parameters().cols());
    const float* const weights = modelet.parameters().weights().row(row, scratch.data());
    return {weights, weights + scratch.size()};
  }

  void add_pairs() {
    const Modelet& modelet = *scoring_.modelets()[row_.modelet];
    if (modelet.direct() != nullptr) {
      double squares = 0;
      for (const float value : sample_.values) squares += double{value} * value;
      const float inverse = inverse_length(squares);
      const std::span<const uint32_t> known = modelet.direct()->pairs.features(row_.row);
      std::vector<float> values(known.size());
      scoring_.pair_values(row_, values);
      for (size_t f = 0; f < shares_.size(); ++f) {
        const auto found = std::ranges::lower_bound(known, sample_.features[f]);
        if (found != known.end() && *found == sample_.features[f])
          shares_[f] +=
              double{sample_.values[f]} * inverse * values[static_cast<size_t>(found - known.begin())];
      }
    }
    if (scoring_.settings().own_weight == 0) return;
    const uint32_t own = scoring_.spread().label(static_cast<uint32_t>(modelet.spec().begin + row_.row));
    const auto found = std::ranges::lower_bound(sample_.features, own);
    if (found == sample_.features.end() || *found != own) return;
    const auto f = static_cast<size_t>(found - sample_.features.begin());
    shares_[f] += double{scoring_.settings().own_weight} * sample_.values[f];
  }

  const Network& network_;
  const Scoring& scoring_;
  const Sample& sample_;
  const LabelRow row_;
  std::vector<double> shares_;
  double rest_ = 0;
};

}  // namespace

Explanation explain(const Model& model, const Sample& sample, uint32_t label) {
  MODELET_CHECK(label < model.shape().labels, "numbers of labels are checked before");
  Explanation result{.label = label};
  for (size_t f = 0; f < sample.features.size(); ++f)
    result.features.push_back({sample.features[f], sample.values[f], 0});
  const double weight = model.shares().empty() ? 1 : model.shares()[label];
  for (const auto& tower : model.towers()) {
    const uint32_t neuron = tower->network().spread().neuron(label);
    if (neuron == LabelSpread::kNoNeuron) continue;
    const TowerShares parts(tower->network(), sample, neuron);
    result.rest += weight * parts.rest();
    for (size_t f = 0; f < result.features.size(); ++f)
      result.features[f].share += weight * parts.shares()[f];
  }
  result.score = result.rest;
  for (const FeatureShare& feature : result.features) result.score += feature.share;
  std::ranges::stable_sort(result.features, std::ranges::greater{},
                           [](const FeatureShare& each) { return std::abs(each.share); });
  return result;
}

}  // namespace modelet::shard
