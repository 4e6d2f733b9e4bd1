#include "node_agent/train/data/tower_samples.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace modelet::agent {

TowerSamples::TowerSamples(const TrainJob& job, shard::LabelSpread spread, uint32_t task)
    : job_(job), shared_(shared_samples(job)), spread_(std::move(spread)), task_(task) {}

shard::Dataset TowerSamples::train(const std::vector<shard::NeuronRange>&,
                                   const OnPreparing& on_preparing) const {
  shard::Dataset data = shared_->train({{0, spread_.labels()}}, on_preparing);
  if (data.labels() != spread_.labels())
    throw Error("the towers were made for " + std::to_string(spread_.labels()) +
                " labels, and the data has " + std::to_string(data.labels()));
  data.keep_labels(spread_);
  return data;
}

shard::Dataset TowerSamples::test(const shard::Dataset& train, const OnPreparing&) const {
  static constexpr uint64_t kNoOffset = 0;
  return shard::Dataset::of({.features = train.features(),
                             .labels = train.labels(),
                             .feature_offsets = {&kNoOffset, 1},
                             .label_offsets = {&kNoOffset, 1}},
                            train.normalize());
}

void TowerSamples::require_planned(const shard::Dataset& train, const shard::Dataset& test) const {
  shared_->require_planned(train, test);
  if (job_.shape.labels != spread_.neurons())
    throw Error("the run was planned for a tower of " + std::to_string(job_.shape.labels) +
                " labels, and the division gives it " + std::to_string(spread_.neurons()));
}

shard::FeatureRows TowerSamples::feature_rows(const shard::Dataset& train) const {
  return shared_->feature_rows(train);
}

std::vector<uint32_t> TowerSamples::label_counts(const shard::Dataset& train) const {
  return shared_->label_counts(train);
}

std::vector<uint32_t> TowerSamples::trained(const shard::Dataset& train, std::vector<uint32_t> rows) const {
  const float share = job_.experiment.model.tower_samples;
  if (share == 1) return rows;
  Rng rng(job_.experiment.train.seed, {kStreamTowerSamples, task_});
  std::erase_if(rows,
                [&](uint32_t row) { return rng.uniform() >= share && train.sample(row).labels.empty(); });
  return rows;
}

}  // namespace modelet::agent
