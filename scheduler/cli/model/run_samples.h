// Samples for a trained model: those that a user names, and those of the run that trained it, on which probabilities
// are calibrated and sparse scoring is tuned. Progress of reading and notes on it go to standard error, because
// standard output is for the answers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shard/data/store/dataset.h"
#include "shard/inference/model.h"
#include "shard/inference/nearest_samples.h"

namespace modelet::cli {

using Note = std::function<void(const std::string& text)>;

shard::Dataset load_samples(const shard::Model& model, const std::string& path);

// The test data of the run, where its experiment says that it is. UsageError, followed by `advice`, unless
// these are the samples with which the run was tested.
shard::Dataset test_data(const shard::Model& model, const std::string& advice);

// The training samples of the run, for explanations. UsageError unless they are there.
std::unique_ptr<const shard::NearestSamples> nearest_samples(const shard::Model& model);

// Calibrates the model's probabilities on the file `labelled`, if given. Otherwise takes the calibration beside the
// checkpoint, if there is one. Otherwise fits it on the samples that the run held out for validation, or else on its
// test data. A fitted calibration is written beside the checkpoint. Throws UsageError if there is nothing to fit it
// on. `note` gets what was done.
void calibrate(shard::Model& model, const std::string& labelled, shard::SearchMode mode, const Note& note);

// Gives `note` a warning if training had a file with the names of the labels and the model lacks it.
void note_missing_names(const shard::Model& model, const Note& note);

}  // namespace modelet::cli
