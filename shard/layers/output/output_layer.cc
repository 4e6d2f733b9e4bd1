#include "shard/layers/output/output_layer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/array/padding.h"
#include "shard/kernels/elementwise.h"

namespace modelet::shard {

using MakeOutputLayer = std::unique_ptr<OutputLayer>(std::vector<Modelet*> modelets,
                                                     const OutputOptions& options, const LabelSpread& spread,
                                                     ThreadPool& pool);
// Active sets that the batch, or groups of its samples, share: three GEMMs over gathered rows
// (shared_output_layer.cc).
MakeOutputLayer make_shared_output_layer;
// An active set for each sample, the classic SLIDE: scattered dot products (per_sample_output_layer.cc).
MakeOutputLayer make_per_sample_output_layer;

namespace {

constexpr ByChoice<SamplingMode, MakeOutputLayer*> kOutputLayers({
    {SamplingMode::kFull, make_shared_output_layer},
    {SamplingMode::kUniform, make_shared_output_layer},
    {SamplingMode::kLsh, make_shared_output_layer},
    {SamplingMode::kLshPerSample, make_per_sample_output_layer},
});

constexpr float kMeanDecay = 0.99f;  // of the running mean of activations, per step
constexpr size_t kDriftSample = 64;  // changed rows of a modelet that are hashed to estimate its drift

// Estimated share of the modelet's codes that no longer match its weights: a function of the modelet alone.
double drift_of(const Modelet& modelet, std::span<const uint32_t> changed) {
  std::vector<uint32_t> sample;
  const size_t count = std::min(kDriftSample, changed.size());
  for (size_t i = 0; i < count; ++i) sample.push_back(changed[i * changed.size() / count]);
  const double share = static_cast<double>(changed.size()) / static_cast<double>(modelet.spec().neurons());
  return share * modelet.retrieval()->tables->stale_share(sample, modelet.parameters().weights());
}

}  // namespace

std::unique_ptr<OutputLayer> make_output_layer(std::vector<Modelet*> modelets, const OutputOptions& options,
                                               const LabelSpread& spread, ThreadPool& pool) {
  return kOutputLayers[options.sampling.mode](std::move(modelets), options, spread, pool);
}

OutputLayer::OutputLayer(std::vector<Modelet*> modelets, const OutputOptions& options,
                         const LabelSpread& spread, ThreadPool& pool)
    : modelets_(std::move(modelets)),
      options_(options),
      spread_(spread),
      pool_(pool),
      loss_(make_loss(options.loss)),
      rehash_(pool) {}

void OutputLayer::clear_inactive(ConstMatrix hidden, SampleRange range) {
  for (size_t s = range.begin; s < range.end; ++s) {
    kernels::relu_backward(hidden.row(s), positive_.data() + s * width_, width_);
    if (loss_->normalised()) kernels::relu_backward(hidden.row(s), negative_.data() + s * width_, width_);
  }
}

DirectPath::ScaleGradient OutputLayer::scale_gradient(const BatchLoss& loss,
                                                      std::span<const ConstMatrix> statistics) const {
  if (!options_.direct_path) return {};
  return DirectPath::scale_gradient(loss, statistics, kStatistics, samples_);
}

void OutputLayer::update_scales(const DirectPath::ScaleGradient& gradient, const UpdateRule& rule) {
  if (options_.direct_path) DirectPath::update_scales(modelets_, gradient, rule);
}

void OutputLayer::resize(size_t samples, size_t width) {
  samples_ = samples;
  columns_ = padded(samples);
  width_ = width;
  statistics_.resize(statistics_rows() * columns_);
  positive_.resize(samples * width);
  negative_.resize(samples * width);
}

void OutputLayer::maintain(ConstMatrix hidden, uint64_t step) {
  if (!retrieves_neurons(options_.sampling.mode)) return;
  mean_.assign(hidden.cols, 0.0f);
  for (size_t s = 0; s < hidden.rows; ++s) kernels::add(hidden.row(s), mean_.data(), hidden.cols);
  kernels::scale((1 - kMeanDecay) / static_cast<float>(hidden.rows), mean_.data(), hidden.cols);
  for (Modelet* modelet : modelets_) {
    float* running = modelet->retrieval()->query_mean.data();
    kernels::scale(kMeanDecay, running, hidden.cols);
    kernels::add(mean_.data(), running, hidden.cols);
  }
  const bool look = (step + 1) % options_.sampling.rehash_every == 0;
  if (look) pool_.for_pieces(modelets_.size(), 1, [&](size_t m, size_t) { modelets_[m]->choose_common(); });
  if (!uses_hash_tables(options_.sampling)) {
    maintain_projections(hidden, look);
  } else if (look) {
    maintain_tables();
  }
}

// Projections are built at once and not in the background: a build takes as long as the searches of a few
// steps, and so a modelet needs no second set of projections. The basis comes from this batch, so all
// modelets that are renewed now have the same basis.
void OutputLayer::maintain_projections(ConstMatrix hidden, bool look) {
  std::optional<LowRankBasis> basis;
  for (Modelet* modelet : modelets_) {
    LowRankIndex& low_rank = *modelet->retrieval()->low_rank;
    const Parameters& parameters = modelet->parameters();
    if (low_rank.ready() && !(look && low_rank.drift(parameters, hidden) >= options_.sampling.drift))
      continue;
    if (!basis) basis = main_directions(hidden, low_rank.rank());
    low_rank.build(parameters, *basis, hidden, pool_);
  }
}

void OutputLayer::maintain_tables() {
  // Tables that were begun at the last check take over now, whenever their work was done, so that a run can
  // be repeated.
  rehash_.wait();
  pool_.for_pieces(modelets_.size(), 1, [&](size_t m, size_t) {
    Modelet* modelet = modelets_[m];
    Retrieval& retrieval = *modelet->retrieval();
    if (retrieval.rehash_running) retrieval.tables->finish_rehash();
    retrieval.rehash_running = false;
    std::vector<uint32_t> rows;
    for (uint32_t row = 0; row < retrieval.changed.size(); ++row)
      if (retrieval.changed[row] != 0) rows.push_back(row);
    if (drift_of(*modelet, rows) < options_.sampling.drift) return;
    std::fill(retrieval.changed.begin(), retrieval.changed.end(), uint8_t{0});
    retrieval.tables->begin_rehash(rows, modelet->parameters().weights());
    retrieval.rehash_running = true;
  });
  rehash_.run([this] {
    for (Modelet* modelet : modelets_)
      if (modelet->retrieval()->rehash_running) modelet->retrieval()->tables->work();
  });
}

void OutputLayer::rebuild_retrieval() {
  if (!retrieves_neurons(options_.sampling.mode)) return;
  rehash_.wait();
  pool_.for_pieces(modelets_.size(), 1, [&](size_t m, size_t) {
    Retrieval& retrieval = *modelets_[m]->retrieval();
    modelets_[m]->choose_common();
    if (retrieval.low_rank) retrieval.low_rank->clear();
    if (!retrieval.tables) return;
    retrieval.tables->build(modelets_[m]->parameters().weights());
    retrieval.rehash_running = false;
    std::ranges::fill(retrieval.changed, uint8_t{0});
  });
}

}  // namespace modelet::shard
