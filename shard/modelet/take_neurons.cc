#include "shard/modelet/take_neurons.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace modelet::shard {
namespace {

// Of parameters of the same kind.
void copy_row(const std::vector<Parameters::Array>& to, size_t to_row, const std::vector<Parameters::Array>& from,
              size_t from_row) {
  MODELET_CHECK(to.size() == from.size(), "neurons move between modelets of one kind");
  for (size_t a = 0; a < to.size(); ++a) {
    MODELET_CHECK(to[a].row_bytes == from[a].row_bytes && to[a].dtype == from[a].dtype,
                  "neurons move between modelets of one kind");
    std::memcpy(to[a].first + to_row * to[a].stride_bytes, from[a].first + from_row * from[a].stride_bytes,
                to[a].row_bytes);
  }
}

void take_direct(Direct& to, std::span<const NeuronAt> from) {
  std::vector<uint64_t> offsets = {0};
  std::vector<uint32_t> features, positives;
  std::vector<float> sums, weights, biases;
  for (const NeuronAt& neuron : from) {
    const Direct& direct = *neuron.modelet->direct();
    const LabelPairs pairs = direct.pairs.sums(neuron.row);
    features.insert(features.end(), pairs.features.begin(), pairs.features.end());
    sums.insert(sums.end(), pairs.values, pairs.values + pairs.features.size());
    positives.push_back(direct.pairs.positives(neuron.row));
    offsets.push_back(features.size());
    if (!direct.classifiers) continue;
    const auto own = direct.pairs.of_row(std::span(direct.classifiers->weights), neuron.row);
    weights.insert(weights.end(), own.begin(), own.end());
    biases.push_back(direct.classifiers->biases[neuron.row]);
  }
  MODELET_CHECK(to.pairs.restore({.offsets = offsets, .features = features, .positives = positives, .sums = sums},
                                 from.front().modelet->direct()->pairs.feature_count()),
                "pairs of other modelets are pairs");
  if (to.classifiers) to.classifiers = {{weights.begin(), weights.end()}, std::move(biases)};
  copy_row(to.scales.arrays(), 0, from.front().modelet->direct()->scales.arrays(), 0);
}

}  // namespace

void take_neurons(Modelet& to, std::span<const NeuronAt> from) {
  MODELET_CHECK(from.size() == to.spec().neurons(), "each neuron comes from somewhere");
  if (from.empty()) return;
  const std::vector<Parameters::Array> arrays = to.parameters().arrays();
  const Modelet* arrays_of = nullptr;
  std::vector<Parameters::Array> theirs;
  bool has_counts = true;
  std::vector<uint32_t> counts;
  for (size_t row = 0; row < from.size(); ++row) {
    const auto& [modelet, place] = from[row];
    if (modelet != arrays_of) theirs = modelet->parameters().arrays();
    arrays_of = modelet;
    copy_row(arrays, row, theirs, place);
    has_counts = has_counts && !modelet->label_counts().empty();
    if (has_counts) counts.push_back(modelet->label_counts()[place]);
  }
  if (has_counts) to.label_counts() = std::move(counts);
  if (to.direct() != nullptr) take_direct(*to.direct(), from);
  if (Retrieval* const retrieval = to.retrieval()) {
    for (const NeuronAt& neuron : from)
      if (const Retrieval* of_other = neuron.modelet->retrieval()) {
        retrieval->query_mean = of_other->query_mean;
        break;
      }
    to.choose_common();
    if (retrieval->tables) retrieval->tables->build(to.parameters().weights());
  }
}

}  // namespace modelet::shard
