// The submissions of tests of the scheduler and of histories of a pool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/experiment/experiment.h"
#include "comm/content/content.h"
#include "comm/control/control.h"

namespace modelet::scheduler::test {

namespace msg = comm::control;

// A valid submission, with 2 input modelets and some output modelets. They are so much work that even slow
// nodes are worth having.
inline msg::SubmitT submission(uint32_t nodes, const std::string& name = "run",
                               uint32_t output_modelets = 4) {
  Experiment experiment;
  experiment.data.train = "/data/train.txt";
  experiment.data.test = "/data/test.txt";
  experiment.model.hidden = {2048};
  experiment.modelets.hidden_columns = 1024;
  experiment.modelets.output_modelets = output_modelets;
  msg::SubmitT submit;
  submit.name = name;
  submit.experiment = to_toml(experiment);
  submit.shape = std::make_unique<msg::ShapeT>();
  submit.shape->features = 1000;
  submit.shape->labels = 500;
  submit.shape->train_rows = 10000;
  submit.shape->test_rows = 100;
  submit.shape->features_per_row = 20;
  submit.shape->labels_per_row = 3;
  submit.nodes = nodes;
  submit.wait = true;
  return submit;
}

// The same, of a run of towers, each with an equal part of the labels.
inline msg::SubmitT submission_of_tasks(uint32_t tasks, uint32_t nodes = 0, const std::string& name = "run",
                                        uint32_t output_modelets = 4) {
  msg::SubmitT submit = submission(nodes, name, output_modelets);
  Experiment experiment = parse_experiment(submit.experiment, "test");
  experiment.model.towers = tasks;
  experiment.model.loss = Loss::kSigmoid;
  submit.experiment = to_toml(experiment);
  submit.division = comm::to_text(comm::ContentId{});
  const uint64_t labels = submit.shape->labels / tasks;
  for (uint32_t task = 0; task < tasks; ++task) submit.tasks.emplace_back(labels, labels * 10);
  return submit;
}

}  // namespace modelet::scheduler::test
