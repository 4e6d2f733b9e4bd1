#include "node_agent/train/train.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/experiment/partition.h"
#include "node_agent/train/local_run.h"
#include "shard/data/store/dataset.h"

namespace modelet::agent {

TrainJob job_of_one_node(const std::string& run, const Experiment& experiment, const DataShape& shape) {
  return {.run = run,
          .experiment = experiment,
          .shape = shape,
          .owner = std::vector<uint32_t>(partition_model(experiment, shape).size(), 0)};
}

void train(const Experiment& experiment, const std::filesystem::path& out, const EventSink& events) {
  const Experiment::Data& data = experiment.data;
  const shard::Dataset train =
      shard::load_training_data(data.train, data.normalize, encoding_of(experiment), shard::no_labels());
  const shard::Dataset test =
      shard::load_dataset(data.test, data.normalize, train.encoder(), shard::no_labels());
  TrainJob job = job_of_one_node(out.filename().string(), experiment, shard::describe_shape(train, test));
  job.out = out;
  LocalRun(std::move(job)).run(events ? events : [](const nlohmann::json&) {});
}

}  // namespace modelet::agent
