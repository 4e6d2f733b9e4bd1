// PrivateSamples: the samples of an owner (docs/privacy.md). They lie in a file of this machine that only this rank
// reads. All owners have the same features and labels, those of the public test data, and read their text with its encoder
// if it was prepared with one. What would have to be computed of the samples of all owners is not: all features have rows, and all labels count as equally frequent.
//
// Nothing that leaves this machine names the file or quotes it. The owner's log says what is wrong with it.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <vector>

#include "node_agent/train/data/sample_source.h"

namespace modelet::agent {

// The public test data of such a run: an XMC text, or a prepared file of any encoder. Throws as shard::load_dataset().
shard::Dataset load_public_test(const std::filesystem::path& path, Normalize normalize,
                                const shard::PrepareProgress& progress = {});

// Tells the owner, in its agent's log, what is wrong with its samples, and others that something is: a UsageError.
[[noreturn]] void refuse_own_samples(const TrainJob& job, const std::exception& error);

class PrivateSamples final : public SampleSource {
 public:
  // `file`: text as the test data's encoder reads it (without one: XMC), or a prepared file. `job`, whose training data has the name of the owner's, must outlive it.
  PrivateSamples(const TrainJob& job, std::filesystem::path file);

  shard::Dataset train(const std::vector<shard::NeuronRange>& neurons,
                       const OnPreparing& on_preparing) const override;
  shard::Dataset test(const shard::Dataset& train, const OnPreparing& on_preparing) const override;
  void require_planned(const shard::Dataset& train, const shard::Dataset& test) const override;
  bool of_replica() const override { return true; }
  bool has_all_labels() const override { return true; }

  shard::FeatureRows feature_rows(const shard::Dataset& train) const override;
  std::vector<uint32_t> label_counts(const shard::Dataset& train) const override;
  uint64_t steps_per_epoch(uint64_t own) const override;
  shard::LabelSpread spread() const override;

 private:
  const TrainJob& job_;
  const std::unique_ptr<const SampleSource> shared_;  // for the test data
  const std::filesystem::path file_;
};

}  // namespace modelet::agent
