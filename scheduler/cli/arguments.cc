#include "scheduler/cli/arguments.h"

#include <cctype>
#include <filesystem>

#include "shard/data/dataset.h"

namespace modelet::cli {

void ExperimentArguments::add_to(CLI::App& verb) {
  verb.add_option("experiment", file, "experiment file (TOML; docs/experiment.md)")->required()->check(CLI::ExistingFile);
  verb.add_option("--set", overrides, "section.key=value: override a key of the experiment (repeatable)")
      ->take_all();
}

std::string ExperimentArguments::run_name() const {
  std::string name = std::filesystem::path(file).stem().string();
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_' && c != '-') c = '_';
  return name.empty() ? "run" : name;
}

DataShape shape_of(const Experiment& experiment) {
  const auto load = [&](const std::string& path) { return shard::load_dataset(path, experiment.data.normalize); };
  return shard::describe_shape(load(experiment.data.train), load(experiment.data.test));
}

std::string absolute(const std::string& path) {
  return path.empty() ? path : std::filesystem::absolute(path).lexically_normal().string();
}

}  // namespace modelet::cli
