// TowerSamples: the samples of a tower (base/experiment/towers.h): those of the whole run, of whose labels only the
// tower's are known. All ranks know all of these. There is no test: a tower alone answers nothing.
#pragma once

#include <memory>
#include <vector>

#include "node_agent/train/data/sample_source.h"

namespace modelet::agent {

class TowerSamples final : public SampleSource {
 public:
  // `job`: that of the tower, with data as for all labels; must outlive this object. `spread`: the tower's labels.
  TowerSamples(const TrainJob& job, shard::LabelSpread spread, uint32_t task);

  shard::Dataset train(const std::vector<shard::NeuronRange>& neurons,
                       const OnPreparing& on_preparing) const override;
  shard::Dataset test(const shard::Dataset& train, const OnPreparing& on_preparing) const override;
  void require_planned(const shard::Dataset& train, const shard::Dataset& test) const override;
  bool of_replica() const override { return false; }
  bool has_all_labels() const override { return true; }
  shard::FeatureRows feature_rows(const shard::Dataset& train) const override;
  std::vector<uint32_t> label_counts(const shard::Dataset& train) const override;
  uint64_t steps_per_epoch(uint64_t own) const override { return own; }
  shard::LabelSpread spread() const override { return spread_; }
  // Those with a label of the tower and, of the others, a share (model.tower_samples).
  std::vector<uint32_t> trained(const shard::Dataset& train, std::vector<uint32_t> rows) const override;
  float unlabelled_weight() const override { return 1 / job_.experiment.model.tower_samples; }

 private:
  const TrainJob& job_;
  const std::unique_ptr<const SampleSource> shared_;
  const shard::LabelSpread spread_;
  const uint32_t task_;
};

}  // namespace modelet::agent
