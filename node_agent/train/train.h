// Training on one node. train() is for programs that use the library (examples/hello.cc); who wants to stop or resume a
// run uses LocalRun, several nodes Trainer.
#pragma once

#include <filesystem>
#include <string>

#include "base/experiment/experiment.h"
#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

// A run on one node. The caller sets the folder.
TrainJob job_of_one_node(const std::string& run, const Experiment& experiment, const DataShape& shape);

// Loads the experiment's data, trains, tests, and writes checkpoints into the new folder `out`, from which
// shard::Model loads the best one. Uses the cores that train.threads allows. Throws Error.
void train(const Experiment& experiment, const std::filesystem::path& out, const EventSink& events = {});

}  // namespace modelet::agent
