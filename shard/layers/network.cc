#include "shard/layers/network.h"

#include <utility>

#include "base/error.h"
#include "shard/data/store/dataset.h"
#include "shard/kernels/simd/instruction_set.h"
#include "shard/layers/scoring/classifiers.h"

namespace modelet::shard {

Network::Network(const Experiment& experiment, const DataShape& shape, std::span<const ModeletSpec> held,
                 bool trainable, ThreadPool& pool, FeatureRows features, LabelSpread spread)
    : experiment_(experiment),
      shape_(shape),
      pool_(pool),
      spread_(std::move(spread)),
      features_(std::move(features)) {
  const ModeletOptions options = modelet_options(experiment, trainable);
  std::vector<Parameters> input;
  for (size_t i = 0; i < held.size();) {
    if (held[i].kind != LayerKind::kInput) {
      modelets_.push_back(std::make_unique<Modelet>(held[i++], options));
      continue;
    }
    // Adjacent columns lie side by side in memory and are computed together, however fine the partition.
    ModeletSpec run = held[i];
    size_t end = i + 1;
    for (; end < held.size() && held[end].kind == LayerKind::kInput && held[end].begin == run.end; ++end)
      run.end = held[end].end;
    const Parameters& all = input.emplace_back(Modelet::make_parameters(run, options, &features_));
    for (; i < end; ++i)
      modelets_.push_back(std::make_unique<Modelet>(
          held[i], options, all.columns(held[i].begin - run.begin, held[i].neurons())));
  }
  const size_t hidden_layers = experiment.model.hidden.size();
  const bool pairs = experiment.model.precision == Precision::kBf16 && kernels::pairs_pay();
  input_ = make_sparse_input(std::move(input), features_, pool);
  for (size_t layer = 1; layer < hidden_layers; ++layer)
    hidden_.push_back(std::make_unique<HiddenLayer>(modelets_of_layer(layer), pool, pairs));
  output_ = make_output_layer(modelets_of_layer(hidden_layers), output_options(experiment, shape.labels),
                              spread_, pool);
  scoring_ = std::make_unique<Scoring>(output_->modelets(), spread_, scoring_settings(experiment));
}

void Network::initialise() {
  const double frequency = shape_.labels_per_row / static_cast<double>(shape_.labels);
  const float output_bias = make_loss(experiment_.model.loss)->initial_output_bias(frequency);
  pool_.for_pieces(modelets_.size(), 1, [&](size_t i, size_t) { modelets_[i]->initialise(output_bias); });
}

void Network::set_label_counts(std::span<const uint32_t> counts) {
  for (Modelet* modelet : output_->modelets()) {
    const ModeletSpec& spec = modelet->spec();
    modelet->label_counts().resize(spec.neurons());
    for (size_t i = 0; i < spec.neurons(); ++i)
      modelet->label_counts()[i] = counts[spread_.label(static_cast<uint32_t>(spec.begin + i))];
  }
  set_scoring();
}

void Network::build_pairs(const Dataset& data, std::span<const uint32_t> rows) {
  for (Modelet* modelet : output_->modelets())
    if (Direct* direct = modelet->direct()) {
      direct->pairs.build(data, rows, spread_, pool_);
      if (direct->classifiers) direct->classifiers = Classifiers::none(direct->pairs);
    }
}

void Network::add_samples(const Dataset& data, std::span<const uint32_t> rows, uint64_t earlier_rows) {
  for (Modelet* modelet : output_->modelets())
    if (Direct* direct = modelet->direct()) {
      const Pairs before = direct->pairs.add(data, rows, spread_, pool_);
      if (direct->classifiers) direct->classifiers = direct->classifiers->moved(before, direct->pairs);
    }
  set_scoring();  // that of the classifiers
  keep_classifiers(*scoring_);
  std::vector<uint32_t> counts = count_labels(data);
  const std::vector<uint32_t> before = label_counts();
  for (size_t label = 0; label < before.size(); ++label) counts[label] += before[label];
  shape_.train_rows += earlier_rows;
  set_label_counts(counts);
}

std::vector<uint32_t> Network::label_counts() const {
  std::vector<uint32_t> counts(spread_.labels());
  for (const Modelet* modelet : output_->modelets()) {
    const std::vector<uint32_t>& own = modelet->label_counts();
    if (own.empty()) return {};
    for (size_t i = 0; i < own.size(); ++i)
      counts[spread_.label(static_cast<uint32_t>(modelet->spec().begin + i))] = own[i];
  }
  return counts;
}

std::vector<Modelet*> Network::modelets_of_layer(size_t layer) const {
  std::vector<Modelet*> found;
  for (const auto& modelet : modelets_)
    if (modelet->spec().layer == layer) found.push_back(modelet.get());
  return found;
}

size_t Network::memory_bytes() const {
  size_t sum = features_.memory_bytes();
  for (const auto& modelet : modelets_) sum += modelet->memory_bytes();
  return sum;
}

}  // namespace modelet::shard
