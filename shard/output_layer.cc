#include "shard/output_layer.h"

#include <algorithm>

#include "shard/kernels/kernels.h"

namespace modelet::shard {
namespace {

constexpr float kMeanDecay = 0.99f;  // of the running mean of activations, per step

}  // namespace

OutputLayer::OutputLayer(std::vector<Modelet*> modelets, const Experiment& experiment, ThreadPool& pool)
    : modelets_(std::move(modelets)),
      experiment_(experiment),
      pool_(pool),
      loss_(make_loss(experiment.model.loss)),
      rehash_(pool) {}

void OutputLayer::resize(size_t samples, size_t width) {
  samples_ = samples;
  columns_ = kernels::padded(samples);
  width_ = width;
  statistics_.resize(kStatistics * columns_);
  positive_.resize(samples * width);
  negative_.resize(samples * width);
}

void OutputLayer::maintain(ConstMatrix hidden, uint64_t step) {
  const auto every = experiment_.sampling.rehash_every;
  const bool turn = (step + 1) % every == 0;
  if (!uses_hash_tables(experiment_.sampling.mode)) return;
  if (experiment_.sampling.centre) {
    mean_.assign(hidden.cols, 0.0f);
    for (size_t s = 0; s < hidden.rows; ++s) kernels::add(hidden.row(s), mean_.data(), hidden.cols);
    kernels::scale((1 - kMeanDecay) / static_cast<float>(hidden.rows), mean_.data(), hidden.cols);
    for (Modelet* modelet : modelets_) {
      float* running = modelet->retrieval()->query_mean.data();
      kernels::scale(kMeanDecay, running, hidden.cols);
      kernels::add(mean_.data(), running, hidden.cols);
    }
  }
  if (!turn) return;
  // The tables that were begun `every` steps ago take over now, whenever their work was done: so a run can be
  // repeated.
  rehash_.wait();
  for (Modelet* modelet : modelets_) {
    Retrieval& retrieval = *modelet->retrieval();
    if (retrieval.rehash_running) retrieval.index.finish_rehash();
    std::vector<uint32_t> rows;
    for (uint32_t row = 0; row < retrieval.changed.size(); ++row)
      if (retrieval.changed[row] != 0) rows.push_back(row);
    std::fill(retrieval.changed.begin(), retrieval.changed.end(), uint8_t{0});
    retrieval.index.begin_rehash(rows, modelet->parameters().weights());
    retrieval.rehash_running = true;
  }
  rehash_.run([this] {
    for (Modelet* modelet : modelets_) modelet->retrieval()->index.work();
  });
}

}  // namespace modelet::shard
