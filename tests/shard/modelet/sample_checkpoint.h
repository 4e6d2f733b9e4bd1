// A small checkpoint for tests: 50 features, 5 labels, 32 hidden neurons. Each weight tells to which modelet,
// step and place it belongs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/experiment/partition.h"
#include "shard/modelet/checkpoint.h"
#include "shard/modelet/checkpoint_writer.h"

namespace modelet::shard {

inline CheckpointIndex sample_index(uint64_t step) {
  CheckpointIndex index;
  index.modelet_version = "test";
  index.step = step;
  index.experiment =
      parse_experiment("", "/x.toml",
                       {"data.train=/sets/train.txt", "data.test=/sets/test.txt", "model.hidden=[32]",
                        "modelets.hidden_columns=16", "modelets.output_modelets=2"});
  index.shape = {50, 5, 1000, 100, 7.25, 1.1};
  index.extra = R"({"loss":0.125})";
  return index;
}

// weight[i] of a modelet = modelet id + step + i / 1000.
inline std::vector<float> sample_weights(const ModeletSpec& spec, uint64_t step) {
  std::vector<float> weights(spec.neurons() * spec.inputs);
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] = static_cast<float>(spec.id) + static_cast<float>(step) + static_cast<float>(i) / 1000;
  return weights;
}

inline CheckpointEntry write_sample_modelet(const CheckpointWriter& writer, const ModeletSpec& spec,
                                            uint64_t step) {
  const std::vector<float> weights = sample_weights(spec, step);
  const std::vector<float> bias(spec.neurons(), -1.0f);
  const std::vector<uint32_t> clocks(spec.neurons(), 3);
  return writer.write_modelet(
      spec,
      std::vector{tensor("weight", {spec.neurons(), spec.inputs}, weights),
                  tensor("bias", {spec.neurons()}, bias), tensor("clock", {spec.neurons()}, clocks)},
      {{"modelet", spec.name()}});
}

// Writes a checkpoint: all steps that the ranks of a run take, in one process.
inline std::filesystem::path write_sample_checkpoint(const std::filesystem::path& checkpoints, uint64_t step,
                                                     uint32_t keep) {
  CheckpointIndex index = sample_index(step);
  const CheckpointWriter writer(checkpoints, step);
  for (const ModeletSpec& spec : partition_model(index.experiment, index.shape))
    index.modelets.push_back(write_sample_modelet(writer, spec, step));
  return writer.commit(std::move(index), keep);
}

}  // namespace modelet::shard
