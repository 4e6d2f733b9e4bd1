// What several verbs take: an experiment file with overrides, paths, and what follows from them.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "base/experiment.h"
#include "shard/data/dataset.h"

namespace modelet::cli {

struct ExperimentArguments {
  std::string file;
  std::vector<std::string> overrides;

  // Adds EXPERIMENT and --set.
  void add_to(CLI::App& verb);
  Experiment load() const;  // UsageError also for a codec that does not exist
  // Name of the run: the file's, in the characters that the scheduler takes.
  std::string run_name() const;
};

// How a text is read: keys of the experiment.
struct ReadingArguments {
  std::vector<std::string> overrides;

  // Adds --set.
  void add_to(CLI::App& verb);
  // An experiment with these keys, whose training data is `text`.
  Experiment load(const std::string& text) const;
};

struct ExperimentData {
  shard::Dataset train, test;

  DataShape shape() const { return shard::describe_shape(train, test); }
};

// Reads (and prepares, the first time) the experiment's data, of the training data the labels that are
// wanted.
ExperimentData load_data(const Experiment& experiment, const shard::LabelPart& labels = shard::no_labels());

// Tells on standard error how many labels the encoder did not know, if any.
void note_unknown_labels(const shard::Dataset& data, const std::string& path);

// Absolute and normalised; empty stays empty.
std::string absolute(const std::string& path);

}  // namespace modelet::cli
