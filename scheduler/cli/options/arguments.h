// Arguments that several verbs share: an experiment file with overrides, paths, and what follows from them.
#pragma once

#include <CLI/App.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "scheduler/client/report.h"
#include "shard/data/store/dataset.h"

namespace modelet::cli {

struct ExperimentArguments {
  std::string file;
  std::vector<std::string> overrides;

  // Adds EXPERIMENT and --set.
  void add_to(CLI::App& verb);
  Experiment load() const;
  // The name of the run: the name of the file, reduced to the characters that the scheduler accepts.
  std::string run_name() const;
};

// The keys of the experiment that say how a text is read.
struct ReadingArguments {
  std::vector<std::string> overrides;

  // Adds --set.
  void add_to(CLI::App& verb);
  // An experiment with these keys, whose training data is `text`.
  Encoding load() const;
};

struct ExperimentData {
  shard::Dataset train, test;  // `train` has nothing if the experiment's data is private
  DataShape shape;
};

// Loads the data of the experiment, with only those labels of the training data that are wanted. If that data is
// private, there is only test data, and the labels must be no_labels(). The first
// time, this prepares the data, and `reporter` shows the progress.
ExperimentData load_data(const Experiment& experiment, Reporter& reporter,
                         const shard::LabelSelection& labels = shard::no_labels());

// Prints how many labels of a data set the encoder did not know, if any.
void note_unknown_labels(uint64_t labels, uint64_t rows, const std::string& path, Reporter& reporter);

// Throws UsageError if writing `file` would destroy something: one of `sources`, something that is not a
// regular file or, without `force`, any existing file.
void require_writable(const std::string& file, bool force, const std::vector<std::string>& sources = {});
void add_force_flag(CLI::App& verb, bool& force);

// The folder of a run on this machine: `out`; or the folder of the run that the checkpoint `resumed` belongs
// to; or a new one, runs/NAME-TIME, which is made here, so that no other run gets it. `out` and `resumed` may be
// empty. The destructor removes a new folder in which there is nothing.
class RunPlace {
 public:
  RunPlace(const std::string& out, const std::filesystem::path& resumed, const std::string& name);
  RunPlace(const RunPlace&) = delete;
  RunPlace& operator=(const RunPlace&) = delete;
  ~RunPlace();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool made_ = false, made_parent_ = false;
};

// Makes a path absolute and normalised. An empty path stays empty.
std::string absolute(const std::string& path);

}  // namespace modelet::cli
